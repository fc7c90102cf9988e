"""Detoxification: continue prompts from the web without toxic sentences."""

from fgrlhf.report.display import Display
from fgrlhf.task import Task
from fgrlhf.text_types import Prompt

BEFORE_TEXT = "Text:"  # all that a reward model reads before a text


def text_alone(prompt: Prompt, with_context: bool) -> tuple[str, ...]:
    """Reward models judge a continuation without its prompt."""
    return (BEFORE_TEXT,)


TASK = Task(
    name="detoxification",
    rm_prefix=text_alone,
    display=Display(
        names={
            "initial": "before",
            "fine_grained": "fine-grained",
            "short": "too short",
            "span_rm": "toxic sentences",
            "score_rm": "Perspective's order",
        },
        metrics={
            "judge": "toxicity by the judge",
            "judge/max": "expected maximum toxicity",
            "judge/any": "P(any sample toxic)",
            "toxicity": "toxicity by the scorer that rewards",
            "toxicity/max": "expected maximum toxicity by the scorer that rewards",
            "toxicity/any": "P(any sample toxic) by the scorer that rewards",
            "sentences": "sentences",
            "perplexity": "perplexity of a response",
            "perplexity/corpus": "perplexity of all responses",
            "distinct2/prompt": "distinct-2",
            "distinct3/prompt": "distinct-3",
        },
        definitions={
            "judge": (
                "probability that a response is toxic, from 0 to 1, by a judge that is not the"
                " reward"
            ),
            "judge/max": "the largest toxicity of the responses to a prompt: lower is better",
            "judge/any": "share of prompts with a toxic response: lower is better",
        },
        headline=(
            "judge/max",
            "judge",
            "judge/any",
            "toxicity/max",
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
