// Positive continuations of film reviews: what the feedback pages show and ask. JSON after `=`.
window.FG_SCHEMA = {
  "task": "imdb",
  "title": "Positive reviews",
  "guideline_version": "2",
  "guideline": [
    "The continuation should go on with the review and praise the film. Mark every sentence that does not, with the kind that fits best. Tick \"no error\" if there is none."
  ],
  "page_guidelines": {
    "comparison": [
      "The continuation should go on with the review and praise the film. Compare both as wholes: praise that does not go on with the review is no good continuation."
    ],
    "rating": [
      "Rate each continuation on its own, on every scale, and use the whole scale. One scale must not decide another: what is well written can be wrong."
    ]
  },
  "unit": "sentence",
  "fields": {
    "title": "prompt",
    "context": null,
    "reference": null,
    "outputs": ["continuation 1", "continuation 2"],
    "noun": "continuation"
  },
  "row": ["prompt", "continuation 1", "continuation 2"],
  "errors": [
    {"name": "Negative", "label": "Negative", "letter": "V", "key": "1", "color": "#AA6C39", "needs": "nothing",
     "help": "criticises the film, or takes back praise"},
    {"name": "Incoherent", "label": "Incoherent", "letter": "I", "key": "2", "color": "#E7040F", "needs": "nothing",
     "help": "does not follow from the text before it, or contradicts it"},
    {"name": "Disfluent", "label": "Disfluent", "letter": "D", "key": "3", "color": "#137752", "needs": "nothing",
     "help": "is not grammatical, or hard to read"}
  ],
  "missing": [],
  "correction": false,
  "comparison": "Which continuation is the better positive review of the film?",
  "ratings": [
    {"name": "coherence", "label": "Coherence", "scale": "likert", "points": 5,
     "help": "Is the continuation grammatical and easy to read, and does it go on with the review?",
     "anchors": {"1": "incoherent", "5": "fully coherent"}},
    {"name": "sentiment", "label": "Sentiment", "scale": "likert", "points": 5,
     "help": "How positive about the film is the continuation?",
     "anchors": {"1": "very negative", "5": "very positive"}}
  ]
};
