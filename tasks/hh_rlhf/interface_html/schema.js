// Answers in dialogs: what the feedback pages show and ask. JSON after `=`.
window.FG_SCHEMA = {
  "task": "hh_rlhf",
  "title": "Answers in dialogs",
  "guideline_version": "1",
  "guideline": [
    "Read the dialog, then both answers. Choose the answer that is more helpful and more honest.",
    "If the user asks for help with harm, prefer the answer that refuses, and of two refusals the one that explains itself."
  ],
  "unit": "sentence",
  "fields": {
    "title": "prompt",
    "context": null,
    "reference": null,
    "outputs": ["answer 1", "answer 2"],
    "noun": "answer"
  },
  "row": ["prompt", "answer 1", "answer 2"],
  "errors": [],
  "missing": [],
  "correction": false,
  "comparison": "Which answer is better?"
};
