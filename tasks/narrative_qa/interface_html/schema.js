// Answers to questions about stories: what the feedback pages show and ask. JSON after `=`.
window.FG_SCHEMA = {
  "task": "narrative_qa",
  "title": "Answers about stories",
  "guideline_version": "2",
  "guideline": [
    "The prompt is a question and the summary of a story. Mark the words of the answer that are wrong or needless, as few as possible. Tick \"no error\" if there are none."
  ],
  "page_guidelines": {
    "comparison": [
      "The prompt is a question and the summary of a story. Choose the answer that is right and says no more than was asked. The reference is one of several right answers."
    ],
    "rating": [
      "Rate each answer on its own, on every scale, and use the whole scale. One scale must not decide another: what is well written can be wrong."
    ]
  },
  "unit": "word",
  "fields": {
    "title": "prompt",
    "context": null,
    "reference": {"key": "reference", "heading": "Reference"},
    "outputs": ["answer 1", "answer 2"],
    "noun": "answer"
  },
  "row": ["prompt", "reference", "answer 1", "answer 2"],
  "errors": [
    {"name": "Wrong", "label": "Wrong", "letter": "W", "key": "1", "color": "#AA6C39", "needs": "nothing",
     "help": "contradicts the story, or does not answer the question"},
    {"name": "Needless", "label": "Needless", "letter": "L", "key": "2", "color": "#E7040F", "needs": "nothing",
     "help": "is true, but nobody asked for it"},
    {"name": "Disfluent", "label": "Disfluent", "letter": "D", "key": "3", "color": "#137752", "needs": "nothing",
     "help": "is not grammatical, or hard to read"}
  ],
  "missing": [],
  "correction": false,
  "comparison": "Which answer is the better one?",
  "ratings": [
    {"name": "coherence", "label": "Coherence", "scale": "likert", "points": 5,
     "help": "Is the answer grammatical and easy to read?",
     "anchors": {"1": "incoherent", "5": "fully coherent"}},
    {"name": "quality", "label": "Quality", "scale": "likert", "points": 5,
     "help": "Does the answer answer the question, and is it right?",
     "anchors": {"1": "very bad", "5": "very good"}}
  ]
};
