// Errors in translations (MQM): what the feedback pages show and ask. JSON after `=`.
window.FG_SCHEMA = {
  "task": "translation",
  "title": "Errors in translations",
  "guideline_version": "2",
  "guideline": [
    "Mark every error in the translation, as few words as possible, with the severity that fits. Read from left to right. Tick \"no error\" if there is none.",
    "Major: a reader would misunderstand the text or be confused. Minor: a reader notices it, but understands the text. Punctuation: a minor error of punctuation.",
    "Then mark in the source what the translation leaves out, as a major or a minor omission.",
    "If you have used all five marks, stop: what follows is not judged."
  ],
  "unit": "word",
  "fields": {
    "title": "prompt",
    "context": null,
    "reference": null,
    "outputs": ["translation"],
    "noun": "translation"
  },
  "row": ["prompt", "translation"],
  "errors": [
    {"name": "major", "label": "Major error", "letter": "M", "key": "1", "color": "#E7040F", "needs": "nothing",
     "help": "a reader would misunderstand it"},
    {"name": "minor", "label": "Minor error", "letter": "I", "key": "2", "color": "#AA6C39", "needs": "nothing",
     "help": "a reader notices it, but understands the text"},
    {"name": "punctuation", "label": "Minor punctuation", "letter": "U", "key": "3", "color": "#5E2CA5", "needs": "nothing",
     "help": "a minor error of punctuation"},
    {"name": "major omission", "label": "Major omission", "letter": "O", "key": "4", "color": "#00449E", "needs": "nothing",
     "side": "source", "help": "in the source: the translation leaves it out, and a reader would misunderstand the text"},
    {"name": "minor omission", "label": "Minor omission", "letter": "A", "key": "5", "color": "#137752", "needs": "nothing",
     "side": "source", "help": "in the source: the translation leaves it out, but a reader understands the text"}
  ],
  "missing": [],
  "correction": false,
  "comparison": null
};
