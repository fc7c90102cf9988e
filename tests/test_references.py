"""`prompts=...`: a sample gets the references of its own prompt, wherever that is in the file."""

import pytest
from feedback_files import write_feedback_files

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from interface_html.command import main as feedback
from interface_html.format import ItemError, PromptReferences
from interface_html.references import References

PROMPTS = [{"prompt": f"What is {n} + {n}?", "references": [f"It is {2 * n}."]} for n in range(4)]
SAMPLES = [{"prompt": row["prompt"], "response": str(n)} for n, row in enumerate(PROMPTS)]


@pytest.fixture
def items(tmp_path, monkeypatch, capsys):
    """Makes items of the task reasoning; returns their references and what was printed."""
    monkeypatch.chdir(tmp_path)

    def run(samples, prompts):
        write_json("s.json", samples)
        write_json("p.json", prompts)
        feedback(["items", "reasoning", "source=s.json", "prompts=p.json", "out=i.json"])
        rows = read_json("i.json")
        return [row.get("references") for row in rows], capsys.readouterr().out

    return run


def test_samples_in_another_order(items):
    found, printed = items(SAMPLES[::-1], PROMPTS)
    assert found == [[f"It is {2 * n}."] for n in (3, 2, 1, 0)]
    assert "p.json: references for 4 of 4 items" in printed


def test_only_some_prompts(items):
    found, printed = items(SAMPLES, PROMPTS[2:])
    assert found == [None, None, ["It is 4."], ["It is 6."]]
    assert "references for 2 of 4 items" in printed


@pytest.mark.parametrize("own", [[], [""], [" "]])
def test_samples_with_empty_references_get_those_of_their_prompts(items, own):
    found, printed = items([{**row, "references": own} for row in SAMPLES], PROMPTS)
    assert found == [row["references"] for row in PROMPTS]
    assert "references for 4 of 4 items" in printed


def test_references_of_a_sample_stay(items):
    found, _ = items([{**SAMPLES[0], "references": ["Nought."]}], PROMPTS)
    assert found == [["Nought."]]


def test_a_task_that_shows_no_reference_refuses_prompts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_json("s.json", SAMPLES)
    write_json("p.json", PROMPTS)
    with pytest.raises(UserError, match="prompts=p.json would not be read: leave it out"):
        feedback(["items", "translation", "source=s.json", "prompts=p.json", "out=i.json"])
    assert not (tmp_path / "i.json").exists()


def test_an_id_of_another_prompt_is_refused(items):
    """As with the prompts of another split, which have the same ids."""
    wrong = [{"id": "7", **row} for row in SAMPLES[:1]]
    with pytest.raises(UserError) as caught:
        items(wrong, [{"id": "7", **PROMPTS[1]}])
    assert "row 0, `id`: 7 is another prompt in p.json" in str(caught.value)
    assert "there `What is 1 + 1?`, here `What is 0 + 0?`" in str(caught.value)


def test_equal_prompts():
    same = PromptReferences("a", "Hi?", ["x"]), PromptReferences("b", "Hi?", ["x"])
    assert References("p", same).of("Hi?", None) == ["x"]
    other = References("p", [*same, PromptReferences("c", "Hi?", ["y"])])
    assert other.of("Hi?", "c") == ["y"] and other.of("Hi?", "a") == ["x"]
    for name in (None, "unknown"):
        with pytest.raises(ItemError) as caught:
            other.of("Hi?", name)
        ((key, reason),) = caught.value.complaints
        assert key == "prompt" and reason.startswith("is that of 3 prompts with different")
    assert other.of("Bye?", "unknown") is None


def test_qa_feedback_joins_by_the_question(tmp_path, capsys):
    write_feedback_files(tmp_path)
    (known,) = read_json(tmp_path / "train.json")
    first = {**known, "question": "Who stood?", "answer": ["Nobody."]}
    write_json(tmp_path / "train.json", [first, known])
    sample = {"question": "Who sat?", "passages": known["passages"], "predictions": ["a"] * 4}
    write_json(tmp_path / "s.json", [sample])
    arguments = [f"source={tmp_path}/s.json", f"prompts={tmp_path}/train.json"]
    feedback(["items", "qa_feedback", *arguments, f"out={tmp_path}/i.json"])
    assert read_json(tmp_path / "i.json")[0]["gold"] == "The cat."
    assert "references for 1 of 1 item" in capsys.readouterr().out
    write_json(tmp_path / "s.json", [{"id": "0", **sample}])
    with pytest.raises(UserError, match=r"there `Who stood\?`, here `Who sat\?`"):
        feedback(["items", "qa_feedback", *arguments, f"out={tmp_path}/j.json"])
