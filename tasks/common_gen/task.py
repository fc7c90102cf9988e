"""CommonGen: a sentence about an everyday scene in which all given concepts occur."""

from typing import Any

from fgrlhf.base.records import RowError, check_texts
from fgrlhf.data.published import PublishedSet
from fgrlhf.data.rows import Row
from fgrlhf.text_types import Prompt
from tasks.text_task import HIDDEN_TEST, text_task

PREFIX = "generate a sentence with: "


def prompts(row: Row) -> list[dict[str, Any]]:
    """The concepts; the references are all sentences of the row. Rows of the hidden test: none."""
    concepts = list(check_texts("concepts", row.get("concepts")))
    if not concepts:
        raise RowError("concepts", "must be a list of one or more words")
    target = row.text("target", may_be_blank=True)
    references = list(check_texts("references", row.get("references") or [])) or [target]
    if not references[0].strip():
        return []
    prompt = f"{PREFIX}{' '.join(concepts)}."
    return [{"prompt": prompt, "references": references, "concepts": concepts}]


def coverage(prompt: Prompt, text: str) -> dict[str, float]:
    """The share of the concepts whose stem occurs in the response."""
    # nltk takes a second to import, and most programs that load the task do not need it
    from nltk.stem import PorterStemmer
    from nltk.tokenize import wordpunct_tokenize

    stemmer = PorterStemmer()
    stems = {stemmer.stem(word) for word in wordpunct_tokenize(text)}
    concepts = prompt.meta["concepts"]
    covered = sum(stemmer.stem(concept) in stems for concept in concepts)
    return {"coverage": covered / len(concepts)}


TASK = text_task(
    "common_gen",
    PublishedSet(
        hub_name="GEM/common_gen",
        is_converted=True,
        parts=HIDDEN_TEST,
        prompts=prompts,
    ),
    headline=("meteor", "meteor_stem", "coverage", "bleu/corpus"),
    metrics=lambda prompts: (coverage,),
)
