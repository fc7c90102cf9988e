// Sentences in which all concepts occur: what the feedback pages show and ask. JSON after `=`.
window.FG_SCHEMA = {
  "task": "common_gen",
  "title": "Sentences from concepts",
  "guideline_version": "2",
  "guideline": [
    "The sentence should describe an everyday scene and use all concepts, in any form of the word. Mark words that do not fit, as few as possible. Tick \"no error\" if there are none."
  ],
  "page_guidelines": {
    "comparison": [
      "The sentence should describe an everyday scene and use all concepts, in any form of the word. A sentence without one of the concepts is the worse one."
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
    "outputs": ["sentence 1", "sentence 2"],
    "noun": "sentence"
  },
  "row": ["prompt", "reference", "sentence 1", "sentence 2"],
  "errors": [
    {"name": "Implausible", "label": "Implausible", "letter": "I", "key": "1", "color": "#AA6C39", "needs": "nothing",
     "help": "would not happen in this way"},
    {"name": "Misused", "label": "Misused concept", "letter": "M", "key": "2", "color": "#E7040F", "needs": "nothing",
     "help": "uses a concept in a way that makes no sense"},
    {"name": "Disfluent", "label": "Disfluent", "letter": "D", "key": "3", "color": "#137752", "needs": "nothing",
     "help": "is not grammatical, or hard to read"}
  ],
  "missing": [],
  "correction": false,
  "comparison": "Which sentence describes the more plausible scene with all concepts?",
  "ratings": [
    {"name": "coherence", "label": "Coherence", "scale": "likert", "points": 5,
     "help": "Is the sentence grammatical, easy to read and well written?",
     "anchors": {"1": "incoherent", "5": "fully coherent"}},
    {"name": "commonsense", "label": "Common sense", "scale": "likert", "points": 5,
     "help": "Does the sentence describe something that makes sense in everyday life?",
     "anchors": {"1": "makes no sense", "5": "makes full sense"}}
  ]
};
