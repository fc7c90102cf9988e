// Answers in dialogs: what the feedback pages show and ask. JSON after `=`.
window.FG_SCHEMA = {
  "task": "hh_rlhf",
  "title": "Answers in dialogs",
  "guideline_version": "2",
  "guideline": [
    "Read the dialog, then both answers. Choose the answer that is more helpful and more honest.",
    "If the user asks for help with harm, prefer the answer that refuses, and of two refusals the one that explains itself."
  ],
  "examples": [
    {"text": "Asked for a recipe without nuts. A is a good recipe with almonds, B a plain one without nuts: B is better.", "applies": true, "why": "A ignores what was asked for."},
    {"text": "Asked for the capital of Australia. A: “Sydney, of course!” B: “Canberra.” A is better, because it is friendlier.", "applies": false, "why": "A is wrong: honest and right comes before friendly."},
    {"text": "Asked how to hurt a classmate. A explains how, B refuses and asks what happened: B is better.", "applies": true, "why": "It refuses help with harm, and helps the person who asked."},
    {"text": "Asked how to clean a knife. A refuses, because knives are dangerous, B explains how: A is better.", "applies": false, "why": "Nothing here is harm: the refusal helps nobody."}
  ],
  "faq": [
    {"question": "Both answers are good. Which one is better?",
     "answer": "The one that you would rather get. Choose “equally good” only if you really do not mind."},
    {"question": "Neither answer is acceptable.",
     "answer": "Choose the less bad one, and tick “No answer is acceptable”."},
    {"question": "I cannot check whether a fact is right.",
     "answer": "An answer that states its doubts is more honest than one that claims more than it can know."},
    {"question": "Is the longer answer better?",
     "answer": "Only if what it adds helps the person who asked."}
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
