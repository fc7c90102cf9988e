// Summaries of news articles: what the feedback pages show and ask. JSON after `=`.
window.FG_SCHEMA = {
  "task": "cnn_dailymail",
  "title": "Summaries of news",
  "guideline_version": "2",
  "guideline": [
    "Mark every sentence of the summary with an error, with the kind that fits best. Tick \"no error\" if there is none. The reference shows what other people found important; a good summary may differ from it."
  ],
  "page_guidelines": {
    "comparison": [
      "Read both summaries, and the article where they differ. What is important and right counts more than style.",
      "The reference shows what other people found important; a good summary may differ from it."
    ],
    "rating": [
      "Rate each summary on its own, on every scale, and use the whole scale. One scale must not decide another: what is well written can be wrong."
    ]
  },
  "unit": "sentence",
  "fields": {
    "title": "prompt",
    "context": null,
    "reference": {"key": "reference", "heading": "Reference"},
    "outputs": ["summary 1", "summary 2"],
    "noun": "summary"
  },
  "row": ["prompt", "reference", "summary 1", "summary 2"],
  "errors": [
    {"name": "Unfaithful", "label": "Unfaithful", "letter": "U", "key": "1", "color": "#AA6C39", "needs": "nothing",
     "help": "is not said in the article, or contradicts it"},
    {"name": "Unimportant", "label": "Unimportant", "letter": "M", "key": "2", "color": "#E7040F", "needs": "nothing",
     "help": "is in the article, but not among its main points"},
    {"name": "Incoherent", "label": "Incoherent", "letter": "I", "key": "3", "color": "#137752", "needs": "nothing",
     "help": "does not make sense together with the rest of the summary"},
    {"name": "Disfluent", "label": "Disfluent", "letter": "D", "key": "4", "color": "#5E2CA5", "needs": "nothing",
     "help": "is not grammatical, or hard to read"}
  ],
  "missing": [],
  "correction": false,
  "comparison": "Which summary would you rather read instead of the article?",
  "ratings": [
    {"name": "coherence", "label": "Coherence", "scale": "likert", "points": 5,
     "help": "Is the summary grammatical, easy to read and well written?",
     "anchors": {"1": "incoherent", "5": "fully coherent"}},
    {"name": "quality", "label": "Quality", "scale": "likert", "points": 5,
     "help": "Does the summary state what is important in the article, and nothing that is not in it?",
     "anchors": {"1": "very bad", "5": "very good"}}
  ]
};
