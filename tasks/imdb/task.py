"""IMDB: continue the first half of a film review in a positive tone."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from fgrlhf.base.records import check_place
from fgrlhf.data.published import Part, PublishedSet
from fgrlhf.data.rows import Row
from fgrlhf.rewards.kind import RewardKind
from fgrlhf.scorers.base import RewardContext, TextScorer, score_texts
from fgrlhf.scorers.kinds import AnyTextScorer
from fgrlhf.text_types import Prompt, SegmentScore
from tasks.text_task import text_task

PROMPT_WORDS = 48  # the end of the first half that the policy reads: about 64 tokens of GPT-2
JUDGED_WORDS = 300  # the end that the classifier reads: with a response, at most its 512 tokens
LABELS = ("negative", "positive")
NAMES = ("neg", "pos")  # of the labels in the hub's data set, where Parquet files have numbers


def prompts(row: Row) -> list[dict[str, Any]]:
    """The first half of the words of a review; the reference is the second half."""
    text = row.text("text")
    label = label_of(row)
    words = text.split(" ")
    opening = words[: len(words) // 2]
    prompt = " ".join(opening[-PROMPT_WORDS:])
    rest = " ".join(words[len(opening) :])
    if not prompt.strip() or not rest.strip():
        return []
    judged = " ".join(opening[-JUDGED_WORDS:])
    # the space before the response is the one that separates the halves
    return [{"prompt": prompt, "references": [f" {rest}"], "opening": judged, "label": label}]


def labelled(row: Row) -> list[tuple[str, str]]:
    return [(row.text("text"), LABELS[label_of(row)])]


def label_of(row: Row) -> int:
    """0 of a negative review, 1 of a positive one; `neg` and `pos` are their names."""
    label = row.get("label")
    if label in NAMES:
        return NAMES.index(label)
    return check_place("label", label, 2, "0 is negative and 1 is positive")


class ReviewSentiment(RewardKind):
    """The score of the review that opening and response form together, by any scorer of texts."""

    kind: Literal["review_sentiment"] = "review_sentiment"
    scorer: AnyTextScorer = Field(description="gives a review a number: docs/rewards.md, Scorers")

    def build(self, context: RewardContext) -> "SentimentReward":
        return SentimentReward(self.scorer.build(context))

    def model_folders(self) -> tuple[str, ...]:
        return self.scorer.model_folders()


class SentimentReward:
    """One value for the whole response."""

    def __init__(self, scorer: TextScorer):
        self.scorer = scorer

    def segment_scores(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> list[list[SegmentScore]]:
        reviews = []
        for prompt, text in zip(prompts, texts):
            space = "" if text[:1].isspace() else " "
            reviews.append(f"{prompt.meta['opening']}{space}{text}")
        scores = score_texts(self.scorer, prompts, reviews)
        return [[SegmentScore(0, None, score, f"positive {score:.2f}")] for score in scores]


TASK = text_task(
    "imdb",
    PublishedSet(
        hub_name="stanfordnlp/imdb",
        config="plain_text",
        parts={
            "train": Part("train", 0.0, 0.8),
            "dev": Part("train", 0.8, 1.0),
            "test": Part("test", 0.0, 0.2),
        },
        prompts=prompts,
        demonstrates=lambda row: row["label"] == 1,
        labelled=labelled,
    ),
    headline=("reward/sentiment", "distinct1", "distinct2"),
    rewards={"review_sentiment": ReviewSentiment},
)
