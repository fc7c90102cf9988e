// Translations of talks into German: what the feedback pages show and ask. JSON after `=`.
window.FG_SCHEMA = {
  "task": "iwslt2017",
  "title": "Translations into German",
  "guideline_version": "2",
  "guideline": [
    "Mark the words of the translation that are wrong, as few as possible. Tick \"no error\" if there are none. The reference is one of several good translations."
  ],
  "page_guidelines": {
    "comparison": [
      "Compare both translations as wholes: one that says what the source says is better than one that only reads well. The reference is one of several good translations."
    ],
    "rating": [
      "Rate each translation on its own, on every scale, and use the whole scale. One scale must not decide another: what is well written can be wrong."
    ]
  },
  "unit": "word",
  "fields": {
    "title": "prompt",
    "context": null,
    "reference": {"key": "reference", "heading": "Reference"},
    "outputs": ["translation 1", "translation 2"],
    "noun": "translation"
  },
  "row": ["prompt", "reference", "translation 1", "translation 2"],
  "errors": [
    {"name": "Mistranslation", "label": "Mistranslation", "letter": "M", "key": "1", "color": "#AA6C39", "needs": "nothing",
     "help": "means something else than the English sentence"},
    {"name": "Addition", "label": "Addition", "letter": "A", "key": "2", "color": "#E7040F", "needs": "nothing",
     "help": "has no counterpart in the English sentence"},
    {"name": "Untranslated", "label": "Untranslated", "letter": "U", "key": "3", "color": "#137752", "needs": "nothing",
     "help": "is still English, but has a German translation"},
    {"name": "Disfluent", "label": "Disfluent", "letter": "D", "key": "4", "color": "#5E2CA5", "needs": "nothing",
     "help": "is wrong or unnatural German"}
  ],
  "missing": [],
  "correction": false,
  "comparison": "Which translation is the better one?",
  "ratings": [
    {"name": "coherence", "label": "Coherence", "scale": "likert", "points": 5,
     "help": "Is the translation grammatical, easy to read and well written?",
     "anchors": {"1": "incoherent", "5": "fully coherent"}},
    {"name": "quality", "label": "Quality", "scale": "likert", "points": 5,
     "help": "Does the translation have the meaning of the source sentence?",
     "anchors": {"1": "very bad", "5": "very good"}}
  ]
};
