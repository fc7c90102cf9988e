// Long-form question answering: what the feedback pages show and ask. JSON after `=`.
window.FG_SCHEMA = {
  "task": "qa_feedback",
  "title": "Long-form question answering",
  "guideline_version": "1",
  "guideline": [
    "Mark the errors in the answer, with spans of whole words that are as short as possible. Give each span one kind; if several apply, take the first in this order: irrelevant, repetitive, inconsistent, unverifiable, incoherent.",
    "Add what the answer leaves out, with the passage sentences that hold it. The answer itself counts as missing if the passages have it; auxiliary information if both the passages and the reference have it.",
    "Then edit the answer as little as possible, so that everything you marked is corrected. Tick \"no error\" only if there is nothing to correct."
  ],
  "unit": "word",
  "fields": {
    "title": "question",
    "context": {"key": "passages", "heading": "Passages", "noun": "passage", "id": "passage_id", "sentences": "sentence_id"},
    "reference": {"key": "gold", "heading": "Reference answer"},
    "outputs": ["prediction 1", "prediction 2", "prediction 3", "prediction 4"],
    "noun": "answer"
  },
  "row": ["question", "passages", "gold", "prediction 1", "prediction 2", "prediction 3", "prediction 4"],
  "errors": [
    {"name": "Irrelevant", "label": "Irrelevant", "letter": "I", "key": "1", "color": "#AA6C39", "needs": "nothing",
     "help": "neither the answer nor crucial auxiliary information"},
    {"name": "Redundant", "label": "Repetitive", "letter": "R", "key": "2", "color": "#E7040F", "needs": "earlier text",
     "help": "repeats earlier text"},
    {"name": "Wrong-Grounding", "label": "Inconsistent Fact", "letter": "F", "key": "3", "color": "#137752", "needs": "sentences",
     "help": "contradicts the passages"},
    {"name": "Unverifiable", "label": "Unverifiable Fact", "letter": "U", "key": "4", "color": "#5E2CA5", "needs": "nothing",
     "help": "is in no passage"},
    {"name": "Incoherent", "label": "Incoherent", "letter": "C", "key": "5", "color": "#FF80CC", "needs": "nothing",
     "help": "major grammar error, or contradicts common sense or its context"}
  ],
  "missing": [
    {"name": "Missing-Answer", "label": "Missing Answer", "letter": "A", "key": "6", "color": "#FF6300",
     "help": "the passages have the answer"},
    {"name": "Missing-Major-Auxiliary", "label": "Missing Major Auxiliary Info", "letter": "M", "key": "7", "color": "#111111",
     "help": "important; in the reference and the passages"},
    {"name": "Missing-Minor-Auxiliary", "label": "Missing Minor Auxiliary Info", "letter": "N", "key": "8", "color": "#0041C2",
     "help": "less important; in the reference and the passages"}
  ],
  "correction": true,
  "comparison": "Which answer would help the person who asked more?"
};
