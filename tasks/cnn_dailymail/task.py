"""CNN / Daily Mail: summarise a news article."""

from typing import Any

from fgrlhf.data.published import PublishedSet
from fgrlhf.data.rows import Row
from tasks.text_task import nothing, text_task

PREFIX = "Summarize: "


def prompts(row: Row) -> list[dict[str, Any]]:
    """The article; the reference has a highlight on each line."""
    return [{"prompt": PREFIX + row.text("article"), "references": [row.text("highlights")]}]


TASK = text_task(
    "cnn_dailymail",
    PublishedSet(hub_name="abisee/cnn_dailymail", config="3.0.0", prompts=prompts),
    headline=("meteor", "meteor_stem", "rouge1", "rouge2", "rougeLsum"),
    core_text=nothing,
)
