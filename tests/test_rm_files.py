"""Reward-model training files: golden files, spans to tags, coverage, atomic writes."""

import json
import os
import random
import subprocess
import sys
from difflib import SequenceMatcher
from pathlib import Path

import pytest
from judged_rows import span

from fgrlhf.base.errors import UserError
from fgrlhf.base.records import DataError
from fgrlhf.data.judgements import Judgement
from fgrlhf.reward_utils import BLANK, load_segmenter
from reward_modeling.segment_files import segment_file, segment_tags, tagged_words
from tasks.qa_feedback.feedback import (
    FeedbackRow,
    MissingInfo,
    error_span,
    read_feedback,
    write_feedback,
)
from tasks.qa_feedback.reward_modeling.coverage import (
    PassageMatcher,
    completeness_preference,
    coverage,
    needed_sentences,
)
from tasks.qa_feedback.reward_modeling.create_rm_files import (
    FOLDERS,
    RMFileSettings,
    create_rm_files,
    factuality_example,
    factuality_tags,
    relevance_example,
    relevance_tags,
)

SEGMENTER = load_segmenter(BLANK)
SCRIPT = Path(__file__).parents[1] / "tasks/qa_feedback/reward_modeling/create_rm_train_files.sh"

# two sentences, the first of two sub-sentences
TEXT = "One two three four five, six seven eight nine ten eleven. A b c d e f g h i j."
ONE, TWO = "One two three four five,", "six seven eight nine ten eleven."
THREE = "A b c d e f g h i j."


def error(kind: str, words: str, text: str = TEXT) -> Judgement:
    start = text.index(words)
    return error_span(kind, start, start + len(words))


def row(
    errors=(),
    text=TEXT,
    passages=(("T", "S one.", "S two."),),
    missing=(),
    corrected="",
    others=None,
) -> FeedbackRow:
    made = {"errors": errors, "missing": missing, "corrected": corrected, "passages": passages}
    made |= {"predictions": [text, *(others or ("", "", ""))], "preference": [0] * 6}
    return FeedbackRow.make(question="Who  sat?", gold="", **made)


# ---- golden --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(qa_feedback, tmp_path_factory):
    """The files made from the real rows."""
    folder = tmp_path_factory.mktemp("data")
    for split in ("train", "dev"):
        os.symlink(qa_feedback / f"{split}_feedback.json", folder / f"{split}_feedback.json")
    create_rm_files(RMFileSettings(data_dir=str(folder), output_dir=str(folder), segmenter=BLANK))
    return folder


@pytest.mark.parametrize("split", ["train", "dev"])
@pytest.mark.parametrize("name", FOLDERS[:2])
def test_segment_files_equal_the_published_ones(made, golden, name, split):
    paths = (root / name / f"{split}.json" for root in (made, golden))
    ours, published = (path.read_text().splitlines() for path in paths)
    assert len(published) > 4 and ours == published


@pytest.mark.parametrize("split", ["train", "dev"])
def test_completeness_preferences_equal_the_published_ones(made, golden, qa_feedback, split):
    ours = json.loads((made / "COMP_sequence" / f"{split}.json").read_text())
    published = json.loads((golden / "COMP_sequence" / f"{split}_preferences.json").read_text())
    assert len(published) > 4
    assert [{key: r[key] for key in ("question", "preference")} for r in ours] == published
    # all else is unchanged, and the file can be read again
    before = {r.question: r for r in read_feedback(qa_feedback / f"{split}_feedback.json")}
    for after in read_feedback(made / "COMP_sequence" / f"{split}.json"):
        earlier = before[after.question]
        assert after.with_preference(earlier.preference).raw == earlier.raw


def test_the_segmenter_is_written_beside_the_files(made):
    for name in FOLDERS:
        assert load_segmenter(json.loads((made / name / "segmenter.json").read_text())) == SEGMENTER


# ---- spans to tags -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "errors, relevance, factuality",
    [
        ([], "OOO", "OO"),
        ([("Irrelevant", ONE)], "NOO", "IO"),
        ([("Redundant", TWO)], "ONO", "IO"),
        ([("Incoherent", THREE)], "OON", "OI"),
        # a non-factual span needs five words, a factual one does not
        ([("Irrelevant", "One two three four")], "OOO", "OO"),
        ([("Irrelevant", "One two three four five,")], "NOO", "IO"),
        ([("Unverifiable", "One")], "OOO", "FO"),
        ([("Wrong-Grounding", "j.")], "OOO", "OF"),
        # across two segments of a sentence, across two sentences
        ([("Irrelevant", "three four five, six seven")], "NNO", "IO"),
        ([("Irrelevant", "nine ten eleven. A b")], "ONN", "II"),
        ([("Unverifiable", "eleven. A")], "OOO", "FF"),
        # adjacent spans, not sorted, of two kinds: a factual error decides its sentence
        ([("Irrelevant", THREE), ("Unverifiable", TWO), ("Redundant", ONE)], "NON", "FI"),
        # a short non-factual span beside a factual one counts for neither
        ([("Irrelevant", "One two"), ("Unverifiable", "three")], "OOO", "FO"),
    ],
)
def test_tags_by_hand(errors, relevance, factuality):
    names = {"O": "O", "N": "NF-ERR", "F": "F-ERR", "I": "Ignore"}
    made = row([error(kind, words) for kind, words in errors])
    assert relevance_tags(made, SEGMENTER) == [names[letter] for letter in relevance]
    assert factuality_tags(made, SEGMENTER) == [names[letter] for letter in factuality]


def test_white_space_inside_a_span_marks_no_neighbour():
    text = "One two three four five.  \xa0A b c d e."
    # its end leaves room before the next sentence
    made = row([error_span("Irrelevant", 0, 25)], text=text)
    assert factuality_tags(made, SEGMENTER) == ["Ignore", "O"]


def words_and_tags(example) -> tuple[list[str], list[str]]:
    assert example is not None
    return example.words, example.tags


def test_words_and_tags_by_hand():
    made = row([error("Irrelevant", ONE)])
    words, tags = words_and_tags(relevance_example(made, SEGMENTER))
    assert words == f"question: Who sat? answer: </s> {ONE} </s> {TWO} </s> {THREE}".split()
    judged = [(i, tag) for i, tag in enumerate(tags) if tag != "Ignore"]
    assert judged == [(4, "NF-ERR"), (10, "O"), (17, "O")]
    words, tags = words_and_tags(factuality_example(made, SEGMENTER))
    prefix = "question: Who sat? context: wikipage: T text: S one. S two. answer:"
    assert words == f"{prefix} </s> {ONE} {TWO} </s> {THREE}".split()
    assert [(i, tag) for i, tag in enumerate(tags) if tag != "Ignore"] == [(24, "O")]
    assert len(words) == len(tags)


def test_a_question_without_passages_has_no_context():
    words, _ = words_and_tags(factuality_example(row(passages=()), SEGMENTER))
    assert words[:5] == ["question:", "Who", "sat?", "answer:", "</s>"]


def test_rows_with_nothing_to_learn_are_left_out_and_keep_their_number():
    rows = [row([error("Irrelevant", ONE), error("Irrelevant", THREE)]), row(text=" "), row()]
    text, summary = segment_file(factuality_example(r, SEGMENTER) for r in rows)
    assert [json.loads(line)["id"] for line in text.splitlines()] == ["2"]
    assert summary == "1 of 3 rows; segments: O 2 (100.0%)"
    text, _ = segment_file(relevance_example(r, SEGMENTER) for r in rows)
    assert [json.loads(line)["id"] for line in text.splitlines()] == ["0", "2"]


def test_odd_characters_reach_the_words():
    example = relevance_example(row(text="\n😀\xa0said, 𝔘nicode\u2028works!"), SEGMENTER)
    words, _ = words_and_tags(example)
    assert words[4:] == ["</s>", "😀", "said,", "𝔘nicode", "works!"]


def test_segment_tags_of_any_labels():
    """Three labels of spans, two tags; the first label of `tags` decides."""
    segments = [(0, 5), (6, 10), (11, 15), (16, 20)]
    places = [(4, 7, "rude"), (8, 9, "false"), (9, 12, "dull"), (15, 16, "false"), (20, 30, "rude")]
    spans = [span(*place) for place in places]
    tags = {"false": "BAD", "rude": "BAD", "dull": "Ignore"}
    # a span that ends where a segment begins does not touch the segment
    assert segment_tags(segments, spans, tags) == ["BAD", "BAD", "Ignore", "O"]
    in_other_order = {"dull": "Ignore", "rude": "BAD"}
    found = segment_tags(segments, spans, in_other_order, ok="fine")
    assert found == ["BAD", "Ignore", "Ignore", "fine"]


def test_a_segment_file_of_steps():
    """Arbitrary segments, here the lines of a solution, with a prefix of plain words."""
    response = "move 1 a c\nmove 2 a b"
    steps = [(0, 10), (11, 21)]
    tags = segment_tags(steps, [span(11, 21, "illegal")], {"illegal": "BAD"}, ok="GOOD")
    example = tagged_words(["discs", "2"], response, steps, tags, ignore="-")
    assert example is not None
    assert " ".join(example.words) == "discs 2 </s> move 1 a c </s> move 2 a b"
    assert example.tags == ["-", "-", "GOOD", *"----", "BAD", *"----"]
    text, summary = segment_file([None, example], ignore="-")
    assert json.loads(text) == {"id": "1", "text": example.words, "feedback_tags": example.tags}
    assert summary == "1 of 2 rows; segments: BAD 1 (50.0%), GOOD 1 (50.0%)"
    assert tagged_words(["discs"], response, steps, ["-", "-"], ignore="-") is None


# ---- coverage ------------------------------------------------------------------------------------


def slow_similarity(sentence: str, subsentence: str) -> float:
    """The rule of coverage.py with difflib."""
    n = len(subsentence.split())
    size = n + int(0.05 * n)
    words = sentence.split()
    words += ["#"] * max(size + 1 - len(words), 0)
    if subsentence in " ".join([sentence, *words[len(sentence.split()) :]]):
        return 1.0
    grams = (" ".join(words[i : i + size]) for i in range(len(words) - size + 1))
    return max(SequenceMatcher(None, gram, subsentence).quick_ratio() for gram in grams)


def test_similarity_is_difflibs_on_random_texts():
    rng = random.Random(0)
    vocabulary = ["a", "ab", "ba", "the", "cat", "tac", "#", "##", "😀", "é,", "1953", "It's"]

    def text(most):
        return " ".join(rng.choices(vocabulary, k=rng.randint(0, most)))

    checked = 0
    for _ in range(150):
        short = ["title", *(text(9) for _ in range(rng.randint(1, 3)))]
        matcher = PassageMatcher([short, ["t", text(45)]])
        for most in (3, 8, 45):
            if subsentence := text(most):
                expected = [slow_similarity(each, subsentence) for each in matcher.sentences]
                assert matcher.similarities(subsentence).tolist() == expected
                checked += len(expected)
    assert checked > 800


def test_similarity_by_hand():
    matcher = PassageMatcher([["T", "the cat sat on a mat", "cab", "x abc y"]])
    # verbatim; "cab" & "abc" share all letters: "cab #" has none of them missing, 2 * 3 / (3 + 3)
    assert matcher.similarities("cat sat").tolist()[0] == 1.0
    assert matcher.similarities("abc").tolist() == [2 * 2 / 6, 1.0, 1.0]
    assert matcher.match("abc") == (1, 2)  # the first one if values are equal
    assert matcher.similarities("cab abc").tolist()[1] == 2 * (3 + 1) / (7 + 5)  # against "cab #"
    # contained in "cab # #", although no n-gram is equal
    assert matcher.similarities("ab #").tolist()[1] == 1.0
    assert matcher.match("zzz") is None
    # 2 * 17 / (20 + 20) is .85 and counts
    threshold = PassageMatcher([["T", "abcdefghijklmnopqXYZ w"]])
    assert threshold.similarities("abcdefghijklmnopq123").tolist() == [0.85]
    assert threshold.match("abcdefghijklmnopq123") == (1, 1)
    assert threshold.match("abcdefghijklmnop1234") is None


PASSAGES = (
    ("Cat", "Cats eat fish at noon.", "Cats sleep all day long."),
    ("Dog", "Dogs bark very loudly outside.", "", "Dogs\xa0chase  cats every morning."),
)


def test_coverage_by_hand():
    corrected = "Cats eat fish at noon. Dogs chase cats every morning. Nobody knows why that is."
    made = row(passages=PASSAGES, corrected=corrected)
    assert needed_sentences(made, PassageMatcher(made.passages), SEGMENTER) == {(1, 1), (2, 3)}
    both = "Dogs chase cats\nevery morning. Cats eat fish at noon."
    texts = ["Cats eat fish at noon.", both, "Cats sleep all day long.", ""]
    assert coverage(made, texts, SEGMENTER) == [0.5, 1.0, 0.0, 0.0]
    outputs = row(text=texts[0], others=texts[1:], passages=PASSAGES, corrected=corrected)
    assert completeness_preference(outputs, SEGMENTER) == [2, 1, 1, 1, 1, 0]


def test_minor_information_is_needed_only_if_it_was_given():
    minor = [
        MissingInfo("Missing-Minor-Auxiliary", 1, (1,)),
        MissingInfo("Missing-Answer", 2, (1,)),
    ]
    corrected = "Cats eat fish at noon. Dogs bark very loudly outside."
    absent = row(text="Nothing here.", passages=PASSAGES, corrected=corrected, missing=minor)
    assert needed_sentences(absent, PassageMatcher(absent.passages), SEGMENTER) == {(2, 1)}
    told = "I say CATS eat\nfish at noon."
    given = row(text=told, passages=PASSAGES, corrected=corrected, missing=minor)
    assert needed_sentences(given, PassageMatcher(given.passages), SEGMENTER) == {(1, 1), (2, 1)}


@pytest.mark.parametrize(
    "order, needed", [("given, then not", set()), ("not, then given", {(1, 1)})]
)
def test_the_last_sub_sentence_that_matches_minor_information_decides(order, needed):
    given, other = "Cats eat fish at noon.", "Cats eats fish at noon."
    corrected = f"{given} {other}" if order.startswith("given") else f"{other} {given}"
    minor = [MissingInfo("Missing-Minor-Auxiliary", 1, (1,))]
    made = row(text=given, passages=PASSAGES, corrected=corrected, missing=minor)
    assert needed_sentences(made, PassageMatcher(made.passages), SEGMENTER) == needed


@pytest.mark.parametrize(
    "passages, corrected",
    [((), "Cats eat fish."), (PASSAGES, ""), (PASSAGES, "Zzz."), ((("T",),), "T")],
)
def test_rows_where_nothing_is_needed(passages, corrected):
    made = row(passages=passages, corrected=corrected)
    assert coverage(made, ["Cats eat fish at noon."], SEGMENTER) is None
    assert completeness_preference(made, SEGMENTER) is None


# ---- the command ---------------------------------------------------------------------------------


def write_rows(folder: Path, bad_row=None) -> None:
    write_feedback(folder / "train_feedback.json", [row()])
    rows = [row().raw] + ([bad_row] if bad_row else [])
    (folder / "dev_feedback.json").write_text(json.dumps(rows))


def test_bad_rows_stop_everything(tmp_path):
    write_rows(tmp_path, {**row().raw, "preference": [1], "gold": None})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError) as caught:
        create_rm_files(RMFileSettings(data_dir=str(tmp_path), output_dir=str(tmp_path)))
    named = [(problem.row, problem.key) for problem in caught.value.problems]
    assert named == [(1, "preference"), (1, "gold")]
    assert sorted(tmp_path.rglob("*")) == before


def test_missing_data_names_the_way_out(tmp_path):
    with pytest.raises(UserError, match="train_feedback.json does not exist.*DATA_DIR"):
        create_rm_files(RMFileSettings(data_dir=str(tmp_path), output_dir=str(tmp_path)))


def test_training_files_need_annotations_not_preferences(tmp_path):
    """The files are the same without the human preferences, and with rows that lack feedback."""
    error = error_span("Irrelevant", 0, 13)
    full = row([error], corrected="S two.", others=("S one.", "S two.", "")).raw
    annotated = {key: value for key, value in full.items() if key != "preference"}
    compared = {key: value for key, value in full.items() if key != "feedback"}
    contents = []
    for name, rows in (("a", [full]), ("b", [annotated, compared])):
        folder = tmp_path / name
        folder.mkdir()
        for split in ("train", "dev"):
            (folder / f"{split}_feedback.json").write_text(json.dumps(rows))
        create_rm_files(
            RMFileSettings(data_dir=str(folder), output_dir=str(folder), segmenter=BLANK)
        )
        contents.append([(folder / kind / "train.json").read_text() for kind in FOLDERS])
    assert contents[0] == contents[1]
    assert all(text.strip("[]\n ") for text in contents[0][:2])
    (tmp_path / "a" / "dev_feedback.json").write_text(json.dumps([compared]))
    with pytest.raises(UserError, match="none of its 1 row has an annotation"):
        create_rm_files(
            RMFileSettings(data_dir=str(tmp_path / "a"), output_dir=str(tmp_path), segmenter=BLANK)
        )


def run_script(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run the script as a user would: from another folder, with relative folders.

    The script uses this Python's environment.
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    folders = {"DATA_DIR": folder.name, "OUTPUT_DIR": "out"}
    environment = {**os.environ, **folders, "VIRTUAL_ENV": sys.prefix, "PATH": path}
    options = {"cwd": folder.parent, "env": environment}
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, **options)


def test_the_script_writes_to_the_folder_of_the_results(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    write_rows(data)
    done = run_script(data, f"segmenter={BLANK}")
    assert done.returncode == 0, done.stderr
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")} == {
        "data/train_feedback.json",
        "data/dev_feedback.json",
        *(
            f"out/derived/{name}/{file}.json"
            for name in FOLDERS
            for file in ("train", "dev", "segmenter")
        ),
    }
    assert "NF-ERR_subsentence/train.json: 1 of 1 rows; segments: O 3 (100.0%)" in done.stdout


def test_similarity_in_a_script_without_spaces_is_difflibs_over_characters():
    sentence, value = "这部电影的创作者是博丹费古。", "这部电影的创作者是博丹卡莱"
    matcher = PassageMatcher([["标题", sentence, "这部小说的制作地是阿布库德。"]])
    grams = [sentence[i : i + len(value)] for i in range(2)]
    expected = max(SequenceMatcher(None, gram, value).quick_ratio() for gram in grams)
    assert matcher.similarities(value).tolist()[0] == expected == 2 * 11 / 26
    assert matcher.match(value) is None  # 0.846
    assert matcher.match("这部电影的创作者是博丹费古；") == (1, 1)
    assert matcher.match("创作者是博丹") == (1, 1)


def test_answers_without_spaces_have_segments_of_their_own(tmp_path, capsys):
    answer = "这部电影的创作者是博丹费古；这部电影的制作地是阿布库德。这部电影的销售地是库德埃弗。"
    wrong = answer.index("制作地") - 5
    feedback = FeedbackRow.make(
        **{"question": "谁？", "gold": answer, "corrected": answer, "missing": []},
        passages=[["标题", "这部电影的创作者是博丹费古。", "这部电影的销售地是库德埃弗。"]],
        **{"predictions": [answer] * 4, "preference": [0] * 6},
        errors=[error_span("Irrelevant", wrong, wrong + 13)],
    )
    for split in ("train", "dev"):
        write_feedback(tmp_path / f"{split}_feedback.json", [feedback])
    create_rm_files(RMFileSettings(data_dir=str(tmp_path), output_dir=str(tmp_path)))
    assert "segments by multilingual" in capsys.readouterr().out
    (line,) = (tmp_path / "NF-ERR_subsentence" / "train.json").read_text().splitlines()
    tags = json.loads(line)["feedback_tags"]
    assert [tag for tag in tags if tag != "Ignore"] == ["O", "NF-ERR", "O"]
