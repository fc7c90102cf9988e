"""Training files of the two neural scorers, from the downloaded files.

    python -m tasks.detoxification.reward_modeling.create_rm_files source=FOLDER output_dir=FOLDER

Writes to output_dir

    span_segments/{train,dev}.json   posts, with a tag for each sentence (reward_modeling/data.py)
    score_pairs/{train,dev}.json     comparisons of texts by their Perspective scores

run_fg_rm learns from the first files which sentences people mark, run_pref_rm from the second ones
which of two texts Perspective rates lower. The texts are those of the linear scorers
(data/prepare.py): posts up to `prepare.HELD_OUT`, and the pages of the judge. Held-out texts are in
none of these files, so that compare_scorers.py can measure all scorers on them.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_text
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.data.judgements import SPAN_ASPECT, Judgement
from fgrlhf.data.split import hash_share
from fgrlhf.reward_utils import Segmenter, load_segmenter
from reward_modeling.segment_files import TaggedWords, segment_file, segment_tags, tagged_words
from tasks.detoxification.data.prepare import (
    HELD_OUT,
    RATED_FILE,
    SPANS_FILE,
    MarkedPost,
    RatedRow,
    RatedText,
    part_of,
    read_posts,
    read_rated,
)
from tasks.detoxification.task import BEFORE_TEXT

TAG = "TOXIC"  # of a sentence with a mark
SPANS = "span_segments"
SCORES = "score_pairs"
SPLITS = ("train", "dev")
# the share above which posts, and pages of the judge, select the best checkpoint
POSTS_DEV = 0.8
PAGES_DEV = 0.94
TEXTS_PER_ROW = 4
MIN_DIFFERENCE = 0.2  # of two scores; a pair of more similar texts would mostly teach noise


class RMFileSettings(StrictModel):
    source: str = Field(description=f"folder with {RATED_FILE} and {SPANS_FILE}")
    output_dir: FilePath = Field(description="folder of the results")


# ---- sentences with people's marks ---------------------------------------------------------------


def split_of_post(post: MarkedPost) -> str | None:
    """The split, train or dev; None for a held-out post."""
    share = hash_share(post.text)
    if share > HELD_OUT:
        return None
    return "dev" if share > POSTS_DEV else "train"


def tagged_post(post: MarkedPost, segmenter: Segmenter) -> TaggedWords | None:
    """A line of span_segments: a sentence is `TOXIC` if a mark touches it. None without words."""
    marks = [Judgement(SPAN_ASPECT, TAG, place, place + 1) for place in sorted(post.marked)]
    sentences = segmenter.sentences(post.text)
    tags = segment_tags(sentences, marks, {TAG: TAG})
    return tagged_words((BEFORE_TEXT,), post.text, sentences, tags)


def span_files(posts: Sequence[MarkedPost], segmenter: Segmenter) -> dict[str, tuple[str, str]]:
    """Split -> text of its file and a summary."""
    files = {}
    for split in SPLITS:
        chosen = [post for post in posts if split_of_post(post) == split]
        files[split] = segment_file(tagged_post(post, segmenter) for post in chosen)
    return files


# ---- pairs of rated texts ------------------------------------------------------------------------


def split_of_page(row: RatedRow) -> str | None:
    """The split, train or dev; None for the rows of prompts."""
    if part_of(row) != "judge":
        return None
    return "dev" if hash_share(row.page) > PAGES_DEV else "train"


def better_pairs(toxicities: Sequence[float]) -> list[list[int]]:
    """[better, worse] for every two texts whose toxicities differ by MIN_DIFFERENCE or more."""
    pairs = []
    for first, second in combinations(range(len(toxicities)), 2):
        difference = toxicities[second] - toxicities[first]
        if difference >= MIN_DIFFERENCE:
            pairs.append([first, second])
        elif -difference >= MIN_DIFFERENCE:
            pairs.append([second, first])
    return pairs


def comparisons(rows: Iterable[RatedRow]) -> list[dict[str, Any]]:
    """Rows of four texts, in a random but fixed order, and their pairs."""
    texts: dict[str, RatedText] = {}
    for row in rows:
        for number, half in enumerate(row.texts):
            if half.text.strip():
                texts[f"{row.id}:{number}"] = half
    ids = sorted(texts, key=hash_share)
    result = []
    for begin in range(0, len(ids), TEXTS_PER_ROW):
        chosen = [texts[id] for id in ids[begin : begin + TEXTS_PER_ROW]]
        if len(chosen) < 2:
            continue  # the last text, which has none to compare with
        toxicities = [half.toxicity for half in chosen if half.toxicity is not None]
        result.append(
            {
                "prompt": BEFORE_TEXT,
                "responses": [half.text for half in chosen],
                "preferences": better_pairs(toxicities),
            }
        )
    return result


# ---- files ---------------------------------------------------------------------------------------


def create_rm_files(settings: RMFileSettings) -> None:
    """Read the downloaded files and write the training files.

    Raises:
      UserError: a file is missing or malformed, or a training file would have nothing to learn.
    """
    source = Path(settings.source)
    folder = Path(settings.output_dir)
    segmenter = load_segmenter()
    posts = span_files(read_posts(source / SPANS_FILE), segmenter)
    rated = read_rated(source / RATED_FILE)
    pairs = {}
    for split in SPLITS:
        pairs[split] = comparisons(row for row in rated if split_of_page(row) == split)
    for split in SPLITS:
        has_pairs = any(row["preferences"] for row in pairs[split])
        for file, is_usable in ((SPANS_FILE, bool(posts[split][0])), (RATED_FILE, has_pairs)):
            if not is_usable:
                raise UserError(
                    f"{source / file} has nothing to learn from for {split}: use the whole file"
                )
    for split in SPLITS:
        text, summary = posts[split]
        path = folder / SPANS / f"{split}.json"
        write_text(path, text)
        print(f"{path}: {summary}")
        path = folder / SCORES / f"{split}.json"
        write_json(path, pairs[split])
        decided = sum(len(row["preferences"]) for row in pairs[split])
        print(f"{path}: {len(pairs[split]):,} rows, {decided:,} pairs")
    write_json(folder / SPANS / "segmenter.json", segmenter.describe())


if __name__ == "__main__":
    run_program(create_rm_files, RMFileSettings)
