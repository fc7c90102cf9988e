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
  "faq": [
    {"question": "The source itself has a mistake.",
     "answer": "Do not mark a translation that follows it."},
    {"question": "One word makes the whole sentence wrong.",
     "answer": "Mark the word only, with the severity of its effect."},
    {"question": "The same mistake comes again.",
     "answer": "Mark it each time; it counts towards the five marks."},
    {"question": "The translation is right, but I would say it in another way.",
     "answer": "That is no error. Mark only what a reader would notice."}
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
     "help": "a reader would misunderstand it",
     "examples": [
       {"text": "“He lent me money” for “Er hat sich Geld von mir geliehen”", "applies": true, "why": "It turns around who has the debt."},
       {"text": "“He has borrowed money of me” for the same source", "applies": false, "why": "The meaning is clear: a minor error."}
     ]},
    {"name": "minor", "label": "Minor error", "letter": "I", "key": "2", "color": "#AA6C39", "needs": "nothing",
     "help": "a reader notices it, but understands the text",
     "examples": [
       {"text": "“She make a good point.”", "applies": true, "why": "Wrong agreement; the meaning is clear."},
       {"text": "“She makes a good pint.”", "applies": false, "why": "Another word: a reader would misunderstand it, so it is major."}
     ]},
    {"name": "punctuation", "label": "Minor punctuation", "letter": "U", "key": "3", "color": "#5E2CA5", "needs": "nothing",
     "help": "a minor error of punctuation",
     "examples": [
       {"text": "“I know, that you came.”", "applies": true, "why": "A comma that English does not have."},
       {"text": "“Let us eat children” for “Let us eat, children”", "applies": false, "why": "The missing comma changes the meaning: major."}
     ]},
    {"name": "major omission", "label": "Major omission", "letter": "O", "key": "4", "color": "#00449E", "needs": "nothing",
     "side": "source", "help": "in the source: the translation leaves it out, and a reader would misunderstand the text"},
    {"name": "minor omission", "label": "Minor omission", "letter": "A", "key": "5", "color": "#137752", "needs": "nothing",
     "side": "source", "help": "in the source: the translation leaves it out, but a reader understands the text"}
  ],
  "missing": [],
  "correction": false,
  "comparison": null
};
