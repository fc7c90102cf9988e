// Next utterances of conversations: what the feedback pages show and ask. JSON after `=`.
window.FG_SCHEMA = {
  "task": "daily_dialog",
  "title": "Next utterances",
  "guideline_version": "2",
  "guideline": [
    "The prompt is a conversation of five utterances, which end with <EOU>. Mark sentences of the next utterance that do not fit, with the kind that fits best. Tick \"no error\" if there is none."
  ],
  "page_guidelines": {
    "comparison": [
      "The prompt is a conversation of five utterances, which end with <EOU>. Choose the next utterance that fits it better. The reference is what the person said; other utterances can be as good."
    ],
    "rating": [
      "Rate each utterance on its own, on every scale, and use the whole scale. One scale must not decide another: what is well written can be wrong."
    ]
  },
  "unit": "sentence",
  "fields": {
    "title": "prompt",
    "context": null,
    "reference": {"key": "reference", "heading": "Reference"},
    "outputs": ["utterance 1", "utterance 2"],
    "noun": "utterance"
  },
  "row": ["prompt", "reference", "utterance 1", "utterance 2"],
  "errors": [
    {"name": "Inconsistent", "label": "Inconsistent", "letter": "I", "key": "1", "color": "#AA6C39", "needs": "nothing",
     "help": "contradicts what was said before"},
    {"name": "Off-topic", "label": "Off topic", "letter": "T", "key": "2", "color": "#E7040F", "needs": "nothing",
     "help": "does not react to the last utterance"},
    {"name": "Dull", "label": "Dull", "letter": "L", "key": "3", "color": "#137752", "needs": "nothing",
     "help": "would fit any conversation"},
    {"name": "Disfluent", "label": "Disfluent", "letter": "D", "key": "4", "color": "#5E2CA5", "needs": "nothing",
     "help": "is not grammatical, or hard to read"}
  ],
  "missing": [],
  "correction": false,
  "comparison": "Which utterance is the more natural reply?",
  "ratings": [
    {"name": "coherence", "label": "Coherence", "scale": "likert", "points": 5,
     "help": "Is the utterance grammatical and easy to read?",
     "anchors": {"1": "incoherent", "5": "fully coherent"}},
    {"name": "quality", "label": "Quality", "scale": "likert", "points": 5,
     "help": "Does the utterance fit the conversation, and is it specific to it?",
     "anchors": {"1": "very bad", "5": "very good"}}
  ]
};
