import tracemalloc
from collections import Counter
from datetime import date

import pytest
import tiny
from rl_helpers import metrics
from test_run_sft import config as sft_config
from test_run_sft import make_world, rows, weights

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_jsonl, write_jsonl
from fgrlhf.configs.strict import load_config, validate
from fgrlhf.data import stream
from fgrlhf.data.formats import COMPARISONS, DEMONSTRATIONS, PROMPTS
from fgrlhf.data.stream import Lazy, Mapped, StoredItems, items_in, parts_of
from fgrlhf.data.tables import DataSet
from fgrlhf.data.token_comparisons import encode_comparisons
from fgrlhf.dpo_rows import Sizes
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.task import NO_TASK
from fgrlhf.train_dpo import build_trainer, load_comparisons
from sft.data import every_turn
from sft.run_sft import train


@pytest.fixture
def large(monkeypatch):
    """Every .jsonl file counts as a large one."""
    monkeypatch.setattr(stream, "LARGE", -1)


def both(file, row_format, *arguments, monkeypatch):
    """The items of a file that is read as a whole, and those that stay there; errors as texts."""
    results = []
    for size in (2**30, -1):
        monkeypatch.setattr(stream, "LARGE", size)
        try:
            results.append(row_format.stream(file, *arguments))
        except UserError as error:
            results.append(str(error))
    return results


def test_rows_that_stay_in_the_file_are_those_that_are_read(tmp_path, monkeypatch):
    file = tmp_path / "rows.jsonl"
    lines = [
        "\ufeff" + '{"prompt": "Grüße 😀", "response": "one"}\r\n',
        "\n",
        '  {"q": "two", "prompt": "b", "response": "x\\ny", "id": "own"}\n',
        " \r\n",
        '{"prompt": "c", "response": "last", "meta": [1, {"a": null}]}',
    ]
    file.write_bytes("".join(lines).encode())
    whole, streamed = both(file, DEMONSTRATIONS, monkeypatch=monkeypatch)
    assert isinstance(whole, list) and isinstance(streamed, StoredItems)
    assert list(streamed) == whole and len(streamed) == len(whole) == 3
    assert [streamed[i] for i in (2, 0, 1, -1)] == [whole[i] for i in (2, 0, 1, 2)]
    assert streamed[1:] == whole[1:] and streamed[::-1] == whole[::-1]
    assert [example.prompt.id for example in streamed] == ["0", "own", "2"]
    with pytest.raises(IndexError):
        streamed[3]


def test_several_examples_in_a_row(tmp_path, monkeypatch):
    turns = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    messages = [{"role": role, "content": text} for role, text in turns]
    file = tmp_path / "rows.jsonl"
    write_jsonl(file, [{"messages": messages[:2]}, {"messages": messages}, {"messages": messages}])
    whole, streamed = both(file, DEMONSTRATIONS, None, every_turn, monkeypatch=monkeypatch)
    assert [example.response for example in whole] == ["b", "b", "d", "b", "d"]
    assert isinstance(streamed, StoredItems) and list(streamed) == whole
    assert [streamed[i] for i in (4, 1, 2)] == [whole[i] for i in (4, 1, 2)]


@pytest.mark.parametrize(
    "text",
    [
        '{"prompt": "a", "response": "b"}\n\n{"prompt": "a"}\n{"prompt": 3, "response": ""}\n[1]\n',
        '{"prompt": "a", "response": "b"}\n{"prompt": "a", "response": }\n',
        '{"prompt": "a", "prompt": "b", "response": "c"}\n',
        '{\n  "prompt": "a",\n  "response": "b"\n}\n',
        '[{"prompt": "a",\n "response": "b"}]\n',
        '{"prompt": "a", "response": NaN}\n',
        "nothing\n",
    ],
)
def test_mistakes_are_told_in_the_same_words(tmp_path, monkeypatch, text):
    file = tmp_path / "rows.jsonl"
    file.write_text(text)
    whole, streamed = both(file, DEMONSTRATIONS, monkeypatch=monkeypatch)
    assert isinstance(whole, str) and streamed == whole


@pytest.mark.usefixtures("large")
def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    with pytest.raises(UserError, match="rows.jsonl, line 2: not UTF-8 text; save it as UTF-8"):
        PROMPTS.stream(file)
    file.write_bytes(b" \n\n")
    with pytest.raises(UserError, match="has no rows"):
        PROMPTS.stream(file)


@pytest.mark.usefixtures("large")
def test_a_file_that_changes_is_refused(tmp_path):
    file = tmp_path / "rows.jsonl"
    write_jsonl(file, [{"prompt": "a"}, {"prompt": "b"}])
    prompts = PROMPTS.stream(file)
    write_jsonl(file, [{"prompt": "new"}])  # another file of this name
    assert [prompt.text for prompt in prompts] == ["a", "b"]
    prompts = PROMPTS.stream(file)
    with open(file, "a") as same:
        same.write('{"prompt": "c"}\n')
    with pytest.raises(UserError, match="has changed while it was read: start again"):
        prompts[0]


@pytest.mark.usefixtures("large")
def test_two_prompts_with_one_id_are_found(tmp_path):
    file = tmp_path / "rows.jsonl"
    write_jsonl(file, [{"prompt": "a", "id": name} for name in ("x", "y", "z", "y", "x")])
    with pytest.raises(UserError, match="two prompts with the id `y`"):
        NO_TASK.prompts(file, "train")


def test_rows_of_a_data_set_are_read_when_they_are_needed():
    import datasets

    rows = [{"text": f"{i}", "day": date(2026, 1, 1 + i), "tags": ["a"] * i} for i in range(5)]
    stored = DataSet("org/name", datasets.Dataset.from_list(rows))

    def items_of(k, row):
        return [(k, row["text"], row["day"], tag) for tag in row["tags"]]

    items, problems = items_in(stored, lambda k, row: len(items_of(k, row)), items_of, "set")
    expected = [(i, f"{i}", f"2026-01-0{1 + i}", "a") for i in range(5) for _ in range(i)]
    assert problems == [] and list(items) == expected
    assert [items[k] for k in (9, 0, 3)] == [expected[k] for k in (9, 0, 3)]


def test_a_damaged_data_set_is_named(monkeypatch):
    import datasets

    stored = DataSet("org/name", datasets.Dataset.from_list([{"text": "a"}]))
    monkeypatch.setattr(datasets.Dataset, "__getitem__", lambda *_: 1 / 0)
    with pytest.raises(UserError, match=r"the data set org/name \(split train.*ZeroDivisionError"):
        stored.row(0)


def test_a_row_takes_a_few_bytes(tmp_path, monkeypatch):
    file = tmp_path / "rows.jsonl"
    write_jsonl(file, [{"prompt": f"{i} " * 100} for i in range(4000)])
    sizes = []
    for large in (2**30, -1):
        monkeypatch.setattr(stream, "LARGE", large)
        tracemalloc.start()
        prompts = PROMPTS.stream(file)
        sizes.append(tracemalloc.get_traced_memory()[0] / len(prompts))
        tracemalloc.stop()
    whole, streamed = sizes
    assert streamed < 40 < 500 < whole  # arrays grow ahead of what they hold


def test_mapped_rows_are_computed_when_they_are_needed():
    calls = []

    def double(values):
        calls.append(list(values))
        return [2 * value for value in values]

    result = Mapped([1, 2, 3], double)
    assert len(result) == 3 and calls == []
    assert result[1] == result[-2] == 4 and calls == [[2]]  # those of a batch are kept
    assert list(result) == [2, 4, 6] and calls[1:] == [[1, 2, 3]]
    assert [len(part) for part in parts_of(range(2500))] == [1024, 1024, 452]


@pytest.mark.parametrize("mixed", [False, True])
def test_a_run_on_rows_that_stay_in_their_file_is_the_same(tmp_path, monkeypatch, mixed):
    world = make_world(tmp_path)
    file, other = tmp_path / "rows.jsonl", tmp_path / "other.jsonl"
    write_jsonl(file, rows(21))
    write_jsonl(other, rows(5))
    options = [f"data.train_file={file}", "evaluation.metric=loss", "train.group_by_length=true"]
    if mixed:
        options[0] = f"data.train_file=[{{file: {file}, share: 2}}, {{file: {other}, share: 1}}]"
    folders = []
    for name, size in (("whole", 2**30), ("streamed", -1)):
        monkeypatch.setattr(stream, "LARGE", size)
        folders.append(train(sft_config(world, *options, f"logging.save_dir={tmp_path}/{name}")))
    whole, streamed = map(weights, folders)
    assert all(whole[key].equal(streamed[key]) for key in whole)
    whole, streamed = [read_jsonl(folder / "metrics.jsonl") for folder in folders]
    assert whole == streamed


def comparison_rows(number):
    """Rows of several lengths; one has only ties, and two answers of another are equal."""
    made = []
    for i in range(number):
        responses = [" ".join(["cat"] * (1 + i % 3)), "a red dog", "the bird"]
        preferences = [[0, 1], [2, 1]] if i % 5 else [[1, 2]]
        made.append(
            {
                "prompt": f"{'one ' * (i % 4)} two",
                "responses": responses,
                "preferences": preferences,
            }
        )
    made[3]["preferences"] = []
    made[4] |= {"responses": ["a dog", "a dog"], "preferences": [[0, 1]]}
    return made


@pytest.mark.parametrize("loss, mixed", [("sigmoid", True), ("kto", False)])
def test_preferences_that_stay_in_their_file_give_the_same_policy(
    tmp_path, monkeypatch, loss, mixed
):
    """Also if the run is interrupted."""
    tiny.t5(dropout=0.1).save(tmp_path / "base")
    file, other = tmp_path / "rows.jsonl", tmp_path / "other.jsonl"
    write_jsonl(file, comparison_rows(14))
    write_jsonl(other, comparison_rows(6))
    write_jsonl(tmp_path / "dev.jsonl", [{"prompt": "one", "references": ["a cat"]}])
    source = f"[{{file: {file}, share: 2}}, {{file: {other}, share: 1}}]" if mixed else str(file)
    (tmp_path / "config.yml").write_text(f"""
model: {{ckpt: {tmp_path}/base, max_generated_len: 6}}
dpo: {{loss: {loss}}}
data: {{feedback_file: {source}, dev_file: {tmp_path}/dev.jsonl}}
train: {{epochs: 2, batch_size: 4, micro_batch_size: 3, lr: 1e-2, dropout: true}}
evaluation: {{every_steps: 100}}
""")

    def trainer(name):
        folder = f"logging.save_dir={tmp_path}/{name}"
        return build_trainer(NO_TASK, load_config(DPOConfig, tmp_path / "config.yml", [folder]))

    monkeypatch.setattr(stream, "LARGE", 2**30)
    whole = trainer("whole")
    whole.train()
    monkeypatch.setattr(stream, "LARGE", -1)
    trainer("streamed").train(until=3)
    streamed = trainer("streamed")
    assert isinstance(streamed.comparisons, Lazy) and len(streamed.comparisons) == len(
        whole.comparisons
    )
    streamed.train()
    assert streamed.step == whole.step > 3
    expected = whole.policy.state_dict()
    assert all(tensor.equal(expected[key]) for key, tensor in streamed.policy.state_dict().items())
    rows_of = [metrics(tmp_path / name) for name in ("whole", "streamed")]
    assert rows_of[0] == rows_of[1]


def test_a_comparison_in_a_file_takes_a_few_bytes(tmp_path, monkeypatch):
    """Each further one; the lists of its tokens alone would take a thousand."""
    policy = tiny.policy("t5")
    file = tmp_path / "rows.jsonl"
    row = {"prompt": "one two " * 20, "responses": ["cat " * 20, "dog"], "preferences": [[0, 1]]}
    monkeypatch.setattr(stream, "KEPT", 100)
    monkeypatch.setattr(stream, "LARGE", -1)
    taken = []
    for number in (100, 100, 500):  # the first time, what is loaded once
        write_jsonl(file, [row] * number)
        tracemalloc.start()
        encoded = encode_comparisons(policy, COMPARISONS.stream(file), 30)
        kept = encoded, Sizes(encoded)
        taken.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        del encoded, kept
    assert (taken[2] - taken[1]) / 400 < 300


@pytest.mark.parametrize("row", [{"preferences": [[0, 1]]}, {"preferences": []}, {}])
def test_notes_on_comparisons_are_counted_once(tmp_path, monkeypatch, row):
    file = tmp_path / "rows.jsonl"
    write_jsonl(file, [{"prompt": "a", "responses": ["b", "c"], "input": "d", **row}] * 3)
    counted = []
    for size in (2**30, -1):
        monkeypatch.setattr(stream, "LARGE", size)
        counts = Counter()
        try:
            items = list(COMPARISONS.stream(file, counts=counts))
        except UserError as error:
            items = str(error)
        counted.append((items, counts))
    assert counted[0] == counted[1] and (counted[0][1] or isinstance(counted[0][0], str))


def test_a_file_of_ties_is_refused_in_the_same_words(tmp_path, monkeypatch):
    file = tmp_path / "rows.jsonl"
    write_jsonl(file, comparison_rows(5)[3:4])
    tree = {"model": {"ckpt": "x"}, "data": {"feedback_file": str(file)}}
    tree["logging"] = {"save_dir": str(tmp_path / "run")}
    for size in (2**30, -1):
        monkeypatch.setattr(stream, "LARGE", size)
        with pytest.raises(UserError, match="all of its rows are ties. Choose another file"):
            load_comparisons(validate(DPOConfig, tree, "test"), {}, NO_TASK.prompts)
