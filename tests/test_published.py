"""Prompts of a published set: every kind of source gives the same ones; mistakes are named."""

import datasets
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json, write_jsonl
from fgrlhf.cli import linear_scorer
from fgrlhf.cli.published import PublishedSettings, write_prompts
from fgrlhf.data.published import Part, PublishedSet, part_rows, prompt_files
from fgrlhf.scorers.linear import LinearScorer
from fgrlhf.task import Task

SIZES = {"train": 10, "validation": 4, "test": 3}
ROWS = {
    split: [{"text": f"{split}, {number}\nend", "n": number} for number in range(size)]
    for split, size in SIZES.items()
}


def prompts(row):
    text = row.text("text")
    return [{"prompt": text, "references": [text.upper()], "n": row.get("n")}]


SET = PublishedSet(hub_name="org/set", prompts=prompts)


def texts(files):
    return {name: [row["prompt"] for row in rows] for name, rows in files.items()}


EXPECTED = {
    f"{part}.json": [row["text"] for row in ROWS[split]]
    for part, split in [("train", "train"), ("dev", "validation"), ("test", "test")]
}


# ---- sources -------------------------------------------------------------------------------------


def write_parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def write_csv(path, rows):
    pyarrow.csv.write_csv(pyarrow.Table.from_pylist(rows), path)


@pytest.mark.parametrize(
    "name, write",
    [
        ("{}.json", write_json),
        ("{}.jsonl", write_jsonl),
        ("{}.csv", write_csv),
        ("{}.parquet", write_parquet),
        ("{}-00000-of-00001-e1dbe3ea1ed9b5b3.parquet", write_parquet),
        ("set_{}_data.jsonl", write_jsonl),
        ("set.{}.jsonl", write_jsonl),
        ("default/{}/0000.parquet", write_parquet),
    ],
)
def test_files_named_by_split(tmp_path, name, write):
    for split, rows in ROWS.items():
        write(tmp_path / name.format(split), rows)
    (tmp_path / "README.md").write_text("train")
    assert texts(prompt_files(SET, str(tmp_path))) == EXPECTED


def test_numbers_of_a_csv_file_are_numbers(tmp_path):
    for split, rows in ROWS.items():
        write_csv(tmp_path / f"{split}.csv", rows)
    files = prompt_files(SET, str(tmp_path))
    assert [row["n"] for row in files["dev.json"]] == [0, 1, 2, 3]


def test_a_csv_file_of_several_blocks(tmp_path):
    rows = [{"text": f"{number}\n" + "x" * 100} for number in range(20_000)]  # pyarrow reads 1 MB
    write_csv(tmp_path / "rows.csv", rows)
    for part in ("train", "dev", "test"):
        numbered = part_rows(SET, part, str(tmp_path / "rows.csv"))
        assert all(values["text"].endswith("\n" + "x" * 100) for _, values in numbered)


def test_another_name_of_a_split_and_several_files(tmp_path):
    write_jsonl(tmp_path / "train-00000-of-00002.jsonl", ROWS["train"][:6])
    write_jsonl(tmp_path / "train-00001-of-00002.jsonl", ROWS["train"][6:])
    write_jsonl(tmp_path / "dev.jsonl", ROWS["validation"])
    write_jsonl(tmp_path / "test.jsonl", ROWS["test"])
    assert texts(prompt_files(SET, str(tmp_path))) == EXPECTED


def write_splits(folder, name):
    """Files of every split, whose names differ only in the split."""
    for split, rows in ROWS.items():
        write_parquet(folder / name.format(split), rows)


def test_only_the_folder_of_the_config_is_read(tmp_path):
    for version in ("1.0.0", "2.0.0", "3.0.0"):
        write_splits(tmp_path, version + "/{}-00000-of-00001.parquet")
    assert texts(prompt_files(PublishedSet("org/set", prompts, "3.0.0"), str(tmp_path))) == EXPECTED
    with pytest.raises(UserError) as error:
        prompt_files(SET, str(tmp_path))
    message = str(error.value)
    assert "several sets of files for the split `train`" in message
    assert "1.0.0/train-00000-of-00001.parquet, 2.0.0/train-00000-of-00001.parquet" in message
    assert "source=FOLDER" in message
    assert texts(prompt_files(SET, str(tmp_path / "2.0.0"))) == EXPECTED


def test_a_saved_set_in_the_folder_of_its_config(tmp_path):
    saved = {split: datasets.Dataset.from_list(rows) for split, rows in ROWS.items()}
    datasets.DatasetDict(saved).save_to_disk(str(tmp_path / "de-en"))
    assert texts(prompt_files(PublishedSet("org/set", prompts, "de-en"), str(tmp_path))) == EXPECTED


def test_splits_with_longer_names_are_others(tmp_path):
    """GEM sets have challenge splits beside the usual ones."""
    write_splits(tmp_path, "default/{}/0000.parquet")
    write_splits(tmp_path, "default/challenge_{}_sample/0000.parquet")
    assert texts(prompt_files(SET, str(tmp_path))) == EXPECTED
    write_splits(tmp_path / "flat", "{}.parquet")
    write_splits(tmp_path / "flat", "challenge_{}_sample.parquet")
    assert texts(prompt_files(SET, str(tmp_path / "flat"))) == EXPECTED


def test_a_file_has_one_split(tmp_path):
    """The name of a file counts before the name of its folder."""
    write_splits(tmp_path, "test/{}.parquet")
    assert texts(prompt_files(SET, str(tmp_path))) == EXPECTED
    write_parquet(tmp_path / "other" / "test" / "set_train_data.parquet", ROWS["test"])
    with pytest.raises(UserError, match="no file of the split `train`"):
        prompt_files(SET, str(tmp_path / "other"))


@pytest.mark.parametrize(
    "name, message",
    [
        ("train.old/train.jsonl", r"train.jsonl, train.old/train.jsonl\. .* repeated or mixed"),
        ("train/0000.jsonl", "train/0000.jsonl, train.jsonl"),
        ("val.jsonl", "split `validation`: val.jsonl, validation.jsonl"),
    ],
)
def test_several_sets_of_files_are_refused(tmp_path, name, message):
    for split, rows in ROWS.items():
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    write_jsonl(tmp_path / name, ROWS["train"])
    with pytest.raises(UserError, match=message):
        prompt_files(SET, str(tmp_path))


def test_a_name_with_two_splits_names_none(tmp_path):
    write_jsonl(tmp_path / "set_train_dev.jsonl", ROWS["train"])
    with pytest.raises(UserError, match="no file of the split `train`"):
        prompt_files(SET, str(tmp_path))


def test_what_save_to_disk_wrote(tmp_path):
    saved = {split: datasets.Dataset.from_list(rows) for split, rows in ROWS.items()}
    datasets.DatasetDict(saved).save_to_disk(str(tmp_path / "set"))
    assert texts(prompt_files(SET, str(tmp_path / "set"))) == EXPECTED
    saved["train"].save_to_disk(str(tmp_path / "one"))
    with pytest.raises(UserError, match="one split only: save the whole set"):
        prompt_files(SET, str(tmp_path / "one"))
    without = datasets.DatasetDict({"train": saved["train"]})
    without.save_to_disk(str(tmp_path / "without"))
    with pytest.raises(UserError, match="no split `validation`; it has train"):
        prompt_files(SET, str(tmp_path / "without"))


def test_a_file_without_splits_is_divided(tmp_path):
    rows = [{"text": f"row {number}"} for number in range(50)]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    files = prompt_files(SET, str(tmp_path / "rows.jsonl"))
    assert {name: len(part) for name, part in files.items()} == {
        "train.json": 30,
        "dev.json": 10,
        "test.json": 10,
    }
    together = [text for part in texts(files).values() for text in part]
    assert sorted(together) == sorted(row["text"] for row in rows)
    assert texts(files)["train.json"] != [row["text"] for row in rows[:30]]  # by hash
    fixture = PublishedSet("org/set", prompts, fixture=tmp_path / "rows.jsonl")
    assert prompt_files(fixture, "fixture") == files


def test_the_hub(monkeypatch):
    calls = []

    def load_dataset(*arguments, split, **options):
        calls.append((*arguments, split, options))
        return datasets.Dataset.from_list(ROWS[split])

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    assert texts(prompt_files(SET)) == EXPECTED
    assert calls[0] == ("org/set", None, "train", {})
    converted = PublishedSet("org/set", prompts, config="de-en", is_converted=True)
    assert texts(prompt_files(converted)) == EXPECTED
    options = {
        "data_files": {"validation": "de-en/validation/*.parquet"},
        "revision": "refs/convert/parquet",
    }
    assert calls[4] == ("org/set", "validation", options)


def test_the_hub_cannot_be_reached(monkeypatch):
    def load_dataset(*arguments, **options):
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    message = r"train of hub:org/set .*Couldn't reach.* network\?.*source=FOLDER.*source=fixture"
    with pytest.raises(UserError, match=message):
        prompt_files(SET)


@pytest.mark.parametrize(
    "names, message",
    [
        (["train.jsonl"], "no file of the split `validation`: .* such as validation.jsonl"),
        (["train.json", "train.parquet"], r"several formats \(.json, .parquet\)"),
    ],
)
def test_folders_that_lack_a_split(tmp_path, names, message):
    for name in names:
        (write_parquet if name.endswith("parquet") else write_jsonl)(tmp_path / name, ROWS["train"])
    with pytest.raises(UserError, match=message):
        prompt_files(SET, str(tmp_path))


def test_a_source_that_does_not_exist(tmp_path):
    with pytest.raises(UserError, match="source=.*gone does not exist"):
        prompt_files(SET, str(tmp_path / "gone"))


@pytest.mark.parametrize(
    "text, message",
    [
        ("a,b\n1\n", "rows.csv is not a readable CSV file"),
        ("prompt,n,prompt\na,1,b\n", "rows.csv: several columns are named `prompt`: rename"),
    ],
)
def test_a_csv_file_that_is_no_table(tmp_path, text, message):
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        prompt_files(SET, str(tmp_path / "rows.csv"))


# ---- rows ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    for split, rows in ROWS.items():
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    return str(tmp_path)


def test_ids_name_the_split_and_the_row(folder):
    def twice(row):
        return [{"prompt": "first"}, {"prompt": "second"}] if row.get("n") == 1 else prompts(row)

    files = prompt_files(PublishedSet("org/set", twice), folder)
    ids = [row["id"] for row in files["test.json"]]
    assert ids == ["test-0", "test-1-0", "test-1-1", "test-2"]


def test_parts_share_a_split_without_overlap(folder):
    parts = {"train": Part("train", 0.0, 0.5), "dev": Part("train", 0.5, 1.0), "test": Part("test")}
    files = prompt_files(PublishedSet("org/set", prompts, parts=parts), folder)
    train = set(texts(files)["train.json"])
    dev = set(texts(files)["dev.json"])
    assert train and dev and not train & dev
    assert train | dev == set(EXPECTED["train.json"])


def test_a_larger_subset_contains_a_smaller_one(folder):
    small = [row_id for row_id, _ in part_rows(SET, "train", folder, 3)]
    large = [row_id for row_id, _ in part_rows(SET, "train", folder, 6)]
    assert len(small) == 3 and len(large) == 6 and set(small) < set(large)
    assert large == sorted(large, key=lambda row_id: int(row_id.removeprefix("train-")))


def test_malformed_rows_are_named(tmp_path):
    rows = [{"text": "a"}, {"text": ""}, {"text": 3}, ["text"], {"other": "a"}]
    for split in SIZES:
        write_jsonl(tmp_path / f"{split}.jsonl", rows if split == "validation" else [rows[0]])
    with pytest.raises(UserError) as error:
        prompt_files(SET, str(tmp_path))
    lines = str(error.value).splitlines()
    assert "cannot be turned into prompts" in lines[0]
    assert [line.strip() for line in lines[1:-1]] == [
        "row validation-1, `text`: must be a text that is not empty",
        "row validation-2, `text`: must be a text, it is a number",
        "row validation-3: must be an object, it is a list",
        "row validation-4, `text`: must be a text, it is null or missing",
    ]


def test_a_row_must_be_a_prompt(folder):
    bad = PublishedSet("org/set", lambda row: [{"prompt": "a", "references": [" "]}])
    message = r"rows train-0, .*, `references\[0\]`: must be a text that is not empty"
    with pytest.raises(UserError, match=message):
        prompt_files(bad, folder)


def test_a_part_without_prompts(folder):
    with pytest.raises(UserError, match="gives no prompts for train"):
        prompt_files(PublishedSet("org/set", lambda row: []), folder)


def test_demonstrations_and_labelled_texts(folder):
    published = PublishedSet(
        "org/set",
        prompts,
        demonstrates=lambda row: row["n"] < 2,
        labelled=lambda row: [(row.text("text"), "even" if row.get("n") % 2 == 0 else "odd")],
    )
    files = prompt_files(published, folder)
    assert [row["n"] for row in files["sft.json"]] == [0, 1]
    assert files["labelled.json"][1] == {"text": "train, 1\nend", "label": "odd"}
    assert len(files["labelled.json"]) == 10  # of train only


# ---- the commands --------------------------------------------------------------------------------


def test_the_command_writes_the_files(folder, tmp_path, capsys):
    task = Task("any", published=SET)
    out = tmp_path / "out"
    write_prompts(task, PublishedSettings(data_dir=str(out), source=folder, subset_size=2))
    assert sorted(path.name for path in out.iterdir()) == ["dev.json", "test.json", "train.json"]
    assert len(read_json(out / "train.json")) == 2
    assert [prompt.references for prompt in task.prompts(out / "dev.json", "dev")][0]
    assert "dev.json: 2 rows" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", "train.json"])
def test_the_source_is_never_replaced(tmp_path, name):
    """The results have the usual names of the splits of a local copy."""
    for split, rows in ROWS.items():
        write_json(tmp_path / f"{split}.json", rows)
    before = (tmp_path / "train.json").read_bytes()
    settings = PublishedSettings(data_dir=str(tmp_path), source=str(tmp_path / name))
    with pytest.raises(UserError, match=r"train\.json is in the source, whose files are not"):
        write_prompts(Task("any", published=SET), settings)
    assert (tmp_path / "train.json").read_bytes() == before
    assert not (tmp_path / "dev.json").exists()


def test_a_task_without_a_published_set():
    with pytest.raises(UserError, match="`any` names no published data set"):
        write_prompts(Task("any"), PublishedSettings(data_dir="out"))


def test_a_scorer_for_every_label(tmp_path):
    rows = [{"text": f"good film {n}", "label": "positive"} for n in range(3)]
    rows += [{"text": f"bad film {n}", "label": "negative"} for n in range(3)]
    write_json(tmp_path / "labelled.json", rows)
    linear_scorer.main([f"texts={tmp_path}/labelled.json", f"output_dir={tmp_path}/scorers"])
    positive = LinearScorer.load(tmp_path / "scorers" / "positive")
    negative = LinearScorer.load(tmp_path / "scorers" / "negative")
    (high,) = positive.probabilities(["a good film"])
    (low,) = negative.probabilities(["a good film"])
    assert high > 0.5 > low and high + low == pytest.approx(1, abs=1e-3)
