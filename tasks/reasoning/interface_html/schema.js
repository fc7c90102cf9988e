// Step-by-step solutions: what the feedback pages show and ask. JSON after `=`.
window.FG_SCHEMA = {
  "task": "reasoning",
  "title": "Steps of a solution",
  "guideline_version": "1",
  "guideline": [
    "Read the solution line by line. Mark the first line that is wrong, with the kind that fits best, and stop there: later lines build on it.",
    "A line is right if it follows from the problem and the lines before it and helps to solve the problem. Tick \"no error\" if all lines are right."
  ],
  "unit": "word",
  "fields": {
    "title": "prompt",
    "context": null,
    "reference": {"key": "reference", "heading": "Reference solution"},
    "outputs": ["solution"],
    "noun": "solution"
  },
  "row": ["prompt", "reference", "solution"],
  "errors": [
    {"name": "Calculation", "label": "Calculation", "letter": "A", "key": "1", "color": "#AA6C39", "needs": "nothing",
     "help": "a wrong result"},
    {"name": "Reasoning", "label": "Reasoning", "letter": "R", "key": "2", "color": "#E7040F", "needs": "nothing",
     "help": "does not follow from the problem or the lines before"},
    {"name": "Useless", "label": "Useless", "letter": "U", "key": "3", "color": "#5E2CA5", "needs": "nothing",
     "help": "right, but does not help to solve the problem"}
  ],
  "missing": [],
  "correction": false,
  "comparison": null
};
