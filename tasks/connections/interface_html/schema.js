// Groups of words: what the feedback pages show and ask. JSON after `=`.
window.FG_SCHEMA = {
  "task": "connections",
  "title": "Groups of related words",
  "guideline_version": "1",
  "guideline": [
    "Every line should be a group of words that are related, and every word of the list should be in one line.",
    "Mark each word that is in the wrong place, with the kind that fits best. Tick \"no error\" if there is none."
  ],
  "unit": "word",
  "fields": {
    "title": "prompt",
    "context": null,
    "reference": null,
    "outputs": ["response"],
    "noun": "response"
  },
  "row": ["prompt", "response"],
  "errors": [
    {"name": "Unrelated", "label": "Unrelated", "letter": "U", "key": "1", "color": "#AA6C39", "needs": "nothing",
     "help": "is not related to the other words of its line"},
    {"name": "Repeated", "label": "Repeated", "letter": "R", "key": "2", "color": "#5E2CA5", "needs": "nothing",
     "help": "was in the response before"},
    {"name": "Invented", "label": "Invented", "letter": "I", "key": "3", "color": "#E7040F", "needs": "nothing",
     "help": "is not in the list of the prompt"}
  ],
  "missing": [],
  "correction": false,
  "comparison": null
};
