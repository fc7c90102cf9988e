"""Detoxification: continue prompts from the web without toxic sentences."""

from pathlib import Path

from fgrlhf.report.display import Display
from fgrlhf.task import Task

TASK = Task(
    name="detoxification",
    annotation=Path(__file__).parent / "interface_html" / "schema.js",
    display=Display(
        names={"initial": "before", "fine_grained": "fine-grained", "short": "too short"},
        metrics={
            "judge": "toxicity by the judge",
            "judge/max": "expected maximum toxicity",
            "judge/any": "P(any sample toxic)",
            "sentences": "sentences",
            "perplexity": "perplexity of a response",
            "perplexity/corpus": "perplexity under the untrained model",
            "distinct2/prompt": "distinct-2",
            "distinct3/prompt": "distinct-3",
        },
        headline=(
            "judge/max",
            "judge",
            "judge/any",
            "perplexity",
            "perplexity/corpus",
            "distinct2/prompt",
            "distinct3/prompt",
            "sentences",
        ),
        order=("initial", "holistic", "fine_grained"),
        colours={"initial": 0, "holistic": 1, "fine_grained": 2},
    ),
)
