"""IWSLT 2017: translate sentences of talks from English to German."""

from typing import Any

from fgrlhf.base.records import check_text
from fgrlhf.data.published import PublishedSet
from fgrlhf.data.rows import Row, look_up
from tasks.text_task import nothing, text_task

PREFIX = "translate English to German: "


def prompts(row: Row) -> list[dict[str, Any]]:
    """The English sentence; the reference is the German one."""
    english = check_text("translation.en", look_up(row.values, "translation.en"))
    german = check_text("translation.de", look_up(row.values, "translation.de"))
    return [{"prompt": PREFIX + english, "references": [german]}]


TASK = text_task(
    "iwslt2017",
    PublishedSet(
        hub_name="IWSLT/iwslt2017",
        config="iwslt2017-de-en",
        is_converted=True,
        prompts=prompts,
    ),
    headline=("ter/corpus", "chrf/corpus", "bleu/corpus"),
    core_text=nothing,
)
