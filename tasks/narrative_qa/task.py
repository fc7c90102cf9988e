"""NarrativeQA: answer a question about a story, from its summary."""

from typing import Any

from fgrlhf.base.records import check_list, check_text
from fgrlhf.data.published import PublishedSet
from fgrlhf.data.rows import Row, look_up
from fgrlhf.metrics.clusters import CLUSTER
from tasks.text_task import nothing, text_task


def prompts(row: Row) -> list[dict[str, Any]]:
    """Question and summary in the form of UnifiedQA: lower case, separated by a literal \\n."""
    question = text_at(row, "question.text")
    summary = text_at(row, "document.summary.text")
    answers = check_list("answers", look_up(row.values, "answers.text"))
    references = []
    for number, answer in enumerate(answers):
        references.append(check_text(f"answers[{number}].text", answer).lower().strip())
    prompt = {"prompt": f"{question} \\n {summary}", "references": references}
    story = look_up(row.values, "document").get("id")  # its questions are alike
    return [{**prompt, CLUSTER: story} if isinstance(story, str) else prompt]


def text_at(row: Row, path: str) -> str:
    """The text at a path of keys, on one line and in lower case."""
    return " ".join(check_text(path, look_up(row.values, path)).lower().split())


TASK = text_task(
    "narrative_qa",
    PublishedSet(hub_name="deepmind/narrativeqa", prompts=prompts),
    headline=("rougeL", "meteor", "meteor_stem", "bleu/corpus"),
    core_text=nothing,
)
