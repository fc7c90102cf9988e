// Descriptions of highlighted table cells: what the feedback pages show and ask. JSON after `=`.
window.FG_SCHEMA = {
  "task": "totto",
  "title": "Descriptions of table cells",
  "guideline_version": "2",
  "guideline": [
    "The sentence should state what the highlighted cells say, and nothing else. Mark words that do not, as few as possible. Tick \"no error\" if there are none."
  ],
  "page_guidelines": {
    "comparison": [
      "The sentence should state what the highlighted cells say, and nothing else. What it adds counts against it as what it leaves out does."
    ],
    "rating": [
      "Rate each sentence on its own, on every scale, and use the whole scale. One scale must not decide another: what is well written can be wrong."
    ]
  },
  "unit": "word",
  "fields": {
    "title": "prompt",
    "context": null,
    "reference": {"key": "reference", "heading": "Reference"},
    "outputs": ["description 1", "description 2"],
    "noun": "description"
  },
  "row": ["prompt", "reference", "description 1", "description 2"],
  "errors": [
    {"name": "Wrong", "label": "Wrong", "letter": "W", "key": "1", "color": "#AA6C39", "needs": "nothing",
     "help": "contradicts the cells, their headers or the titles"},
    {"name": "Unsupported", "label": "Unsupported", "letter": "U", "key": "2", "color": "#E7040F", "needs": "nothing",
     "help": "cannot be known from the cells, their headers or the titles"},
    {"name": "Disfluent", "label": "Disfluent", "letter": "D", "key": "3", "color": "#137752", "needs": "nothing",
     "help": "is not grammatical, or hard to read"}
  ],
  "missing": [],
  "correction": false,
  "comparison": "Which sentence describes the highlighted cells better?",
  "ratings": [
    {"name": "coherence", "label": "Coherence", "scale": "likert", "points": 5,
     "help": "Is the description grammatical, easy to read and well written?",
     "anchors": {"1": "incoherent", "5": "fully coherent"}},
    {"name": "correctness", "label": "Correctness", "scale": "likert", "points": 5,
     "help": "Does the description agree with the highlighted cells?",
     "anchors": {"1": "wrong", "5": "fully correct"}}
  ]
};
