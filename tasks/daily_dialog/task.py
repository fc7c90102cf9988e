"""DailyDialog: the next utterance of an everyday conversation, with the labelled intent."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fgrlhf.base.records import AnyText, Record, RowError, read
from fgrlhf.data.published import PublishedSet
from fgrlhf.data.rows import Row
from fgrlhf.rewards.kind import RewardKind
from fgrlhf.scorers.base import RewardContext, TextScorer, score_texts
from fgrlhf.scorers.kinds import AnyTextScorer
from fgrlhf.text_types import Prompt, SegmentScore
from tasks.text_task import text_task

END = "<EOU>"  # of an utterance
CONTEXT = 5  # utterances of a prompt
Intent = Literal["inform", "question", "directive", "commissive"]
INTENTS = ("", "inform", "question", "directive", "commissive")  # by the number in the set


class Dialog(Record):
    """A row of the set: utterances, and the numbers of their intents."""

    dialog: list[AnyText]
    act: list[Annotated[int, Field(ge=1, lt=len(INTENTS))]]

    @model_validator(mode="after")
    def _has_an_intent_for_each(self):
        if len(self.act) != len(self.dialog):
            raise RowError("act", f"has {len(self.act)} intents for {len(self.dialog)} utterances")
        return self


def utterances(row: Row) -> list[tuple[str, str]]:
    """The utterances of a dialog with their intents. Raises `RowError`."""
    dialog = read(Dialog, row.values)
    return [(text, INTENTS[act]) for text, act in zip(dialog.dialog, dialog.act)]


def prompts(row: Row) -> list[dict[str, Any]]:
    """A prompt for every utterance after the first five: the five before it."""
    dialog = utterances(row)
    rows = []
    for place in range(CONTEXT, len(dialog)):
        context = END.join(text for text, _ in dialog[place - CONTEXT : place])
        text, intent = dialog[place]
        if text.strip():
            rows.append({"prompt": f"{context} {END}", "references": [text], "intent": intent})
    return rows


def labelled(row: Row) -> list[tuple[str, str]]:
    """Every utterance after the first, as a classifier of intents reads it."""
    dialog = utterances(row)
    pairs = zip(dialog, dialog[1:])
    return [(in_context(before, text), intent) for (before, _), (text, intent) in pairs]


def in_context(before: str, text: str) -> str:
    """What a classifier of intents reads: an utterance after the one before it."""
    return f"{before.strip()} {text.strip()}"


class IntentMatch(RewardKind):
    """1 if the intent of the response, by its classifier, is that of the labelled utterance."""

    kind: Literal["intent_match"] = "intent_match"
    scorers: dict[Intent, AnyTextScorer] = Field(
        min_length=len(INTENTS) - 1, description="for each intent a scorer of utterances"
    )

    def build(self, context: RewardContext) -> "IntentReward":
        return IntentReward({name: one.build(context) for name, one in self.scorers.items()})

    def model_folders(self) -> tuple[str, ...]:
        folders = [folder for scorer in self.scorers.values() for folder in scorer.model_folders()]
        return tuple(dict.fromkeys(folders))


class IntentReward:
    """The intent is that with the highest score of the last utterance and the response."""

    def __init__(self, scorers: Mapping[str, TextScorer]):
        self.scorers = scorers

    def segment_scores(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> list[list[SegmentScore]]:
        read = []
        for prompt, text in zip(prompts, texts):
            heard = [part for part in prompt.text.split(END) if part.strip()]
            before = heard[-1] if heard else ""  # every utterance may be blank
            read.append(in_context(before, text))
        scores = {name: score_texts(scorer, prompts, read) for name, scorer in self.scorers.items()}
        results = []
        for number, prompt in enumerate(prompts):
            likely = max(scores, key=lambda intent: scores[intent][number])
            results.append([SegmentScore(0, None, float(likely == prompt.meta["intent"]), likely)])
        return results

    def measures(self, scores: Sequence[SegmentScore]) -> dict[str, float]:
        """The column `intent/accuracy` of an evaluation, whatever the weight of the reward."""
        return {"accuracy": scores[0].value}


TASK = text_task(
    "daily_dialog",
    PublishedSet(
        hub_name="li2017dailydialog/daily_dialog",
        is_converted=True,
        prompts=prompts,
        labelled=labelled,
    ),
    headline=("intent/accuracy", "meteor", "meteor_stem", "distinct2"),
    rewards={"intent_match": IntentMatch},
    metric_names={"intent/accuracy": "intent accuracy"},
)
