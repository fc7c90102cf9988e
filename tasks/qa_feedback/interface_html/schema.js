// Long-form question answering: what the feedback pages show and ask. JSON after `=`.
window.FG_SCHEMA = {
  "task": "qa_feedback",
  "title": "Long-form question answering",
  "guideline_version": "2",
  "guideline": [
    "Mark the errors in the answer, with spans of whole words that are as short as possible. Give each span one kind; if several apply, take the first in this order: irrelevant, repetitive, inconsistent, unverifiable, incoherent.",
    "Add what the answer leaves out, with the passage sentences that hold it. The answer itself counts as missing if the passages have it; auxiliary information if both the passages and the reference have it.",
    "Then edit the answer as little as possible, so that everything you marked is corrected. Tick \"no error\" only if there is nothing to correct."
  ],
  "page_guidelines": {
    "comparison": [
      "Compare the answers as wholes, with the passages and the reference: an answer that is right and complete helps more than one that is well written.",
      "Choose a tie only if neither would help more. You need not count errors, and other answers than the reference can be good."
    ]
  },
  "faq": [
    {"case": "What if I know that a fact is wrong, but no passage says so?",
     "answer": "Mark it as unverifiable. Only the passages count, not what you know or find elsewhere."},
    {"case": "Two kinds fit one span. Which do I take?",
     "answer": "The first that applies, in the order irrelevant, repetitive, inconsistent, unverifiable, incoherent. Spans never overlap."},
    {"case": "A passage contradicts another one. Which is right?",
     "answer": "If one of them supports the answer, it is no inconsistent fact."},
    {"case": "The reference is better than the answer. Do I copy it?",
     "answer": "No. Edit the answer as little as possible; the reference shows what may be missing."},
    {"case": "How long should a span be?",
     "answer": "As short as possible: the wrong number or name alone, not its whole sentence."},
    {"case": "Nothing is wrong, but something is missing. Do I tick “no error”?",
     "answer": "No. Tick it only if nothing is wrong and nothing is missing."}
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
     "help": "neither the answer nor crucial auxiliary information",
     "examples": [
       {"text": "Asked who wrote a song: “It reached number four in the charts.”", "applies": true, "why": "It does not answer the question, and nobody needs it to understand the answer."},
       {"text": "Asked who wrote a song: “It was first recorded in 1965 by another singer.”", "applies": false, "why": "It keeps the reader from confusing the writer with the singer: crucial auxiliary information."}
     ]},
    {"name": "Redundant", "label": "Repetitive", "letter": "R", "key": "2", "color": "#E7040F", "needs": "earlier text",
     "help": "repeats earlier text",
     "examples": [
       {"text": "“The bridge opened in 1932. It was opened in 1932.”", "applies": true, "why": "The second sentence says nothing new: mark it, and select the first as the earlier text."},
       {"text": "“The bridge opened in 1932, after eight years of work. It opened on 19 March.”", "applies": false, "why": "The second sentence adds the day."}
     ]},
    {"name": "Wrong-Grounding", "label": "Inconsistent Fact", "letter": "F", "key": "3", "color": "#137752", "needs": "sentences",
     "help": "contradicts the passages",
     "examples": [
       {"text": "“The film was released in 2004”, while passage 2, sentence 4 has 2006.", "applies": true, "why": "Mark only “2004”, and give 2:4 as evidence."},
       {"text": "“The film was a success”, while no passage has a figure or a review.", "applies": false, "why": "No passage contradicts it: it is an unverifiable fact."}
     ]},
    {"name": "Unverifiable", "label": "Unverifiable Fact", "letter": "U", "key": "4", "color": "#5E2CA5", "needs": "nothing",
     "help": "is in no passage",
     "examples": [
       {"text": "“She lives in Boston”, and no passage names a home.", "applies": true, "why": "It may be true, but nothing on the page supports it."},
       {"text": "“She died at 80”, while a passage has the years of her birth and death.", "applies": false, "why": "The passages support it: the age follows from the two years."}
     ]},
    {"name": "Incoherent", "label": "Incoherent", "letter": "H", "key": "5", "color": "#FF80CC", "needs": "nothing",
     "help": "major grammar error, or contradicts common sense or its context",
     "examples": [
       {"text": "“The river flows north because the bridge.”", "applies": true, "why": "The sentence is broken, and its meaning is lost."},
       {"text": "“He play for the team since 1998.”", "applies": false, "why": "A small mistake of grammar: the meaning is clear."}
     ]}
  ],
  "missing": [
    {"name": "Missing-Answer", "label": "Missing Answer", "letter": "A", "key": "6", "color": "#FF6300",
     "help": "the passages have the answer",
     "examples": [
       {"text": "Asked when and where a battle was: the answer has only the year, and passage 1, sentence 3 has the place.", "applies": true, "why": "A part of what was asked is missing: give 1:3."},
       {"text": "Asked when a battle was: the answer has the year, and a passage also names the generals.", "applies": false, "why": "The question is answered. The generals are auxiliary at most."}
     ]},
    {"name": "Missing-Major-Auxiliary", "label": "Missing Major Auxiliary Info", "letter": "M", "key": "7", "color": "#111111",
     "help": "important; in the reference and the passages",
     "examples": [
       {"text": "Two films have the title that was asked about. The answer names one; the reference and a passage name both.", "applies": true, "why": "Without the other film, the reader can take away a wrong answer."},
       {"text": "The reference also has the length of the film.", "applies": false, "why": "Useful to few: a minor one."}
     ]},
    {"name": "Missing-Minor-Auxiliary", "label": "Missing Minor Auxiliary Info", "letter": "L", "key": "8", "color": "#0041C2",
     "help": "less important; in the reference and the passages",
     "examples": [
       {"text": "The reference and a passage name the character that the actor played; the answer names only the actor.", "applies": true, "why": "It helps, but the answer is clear without it."},
       {"text": "A passage has the actor's birthday, the reference does not.", "applies": false, "why": "It must be in both the passages and the reference."}
     ]}
  ],
  "correction": true,
  "comparison": "Which answer would help the person who asked more?",
  "comment": "optional"
};
