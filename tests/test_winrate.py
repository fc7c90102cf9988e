"""`fgrlhf winrate` on the files of two evaluations, with judges of every kind."""

import json
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, read_jsonl, write_jsonl, write_text
from fgrlhf.pipeline.winrate import WinrateSettings, compare_policies, main
from fgrlhf.task import NO_TASK, Task

PROMPTS = 200
ERROR, BIAS = 0.1, 0.4


class StubJudge(ThreadingHTTPServer):
    """Prefers the response with `good`: wrong in ERROR, and the first one in BIAS of its answers.

    `fails_after` is the number of answers after which it refuses.
    """

    def __init__(self):
        self.answers = 0
        self.fails_after: int | None = None
        super().__init__(("127.0.0.1", 0), StubHandler)

    @property
    def settings(self) -> str:
        url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        return f"{{kind: judge, url: '{url}', model: m, criterion: good, retries: 0, parallel: 1}}"


class StubHandler(BaseHTTPRequestHandler):
    def do_POST(self):
        server = self.server
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        given = json.loads(request["messages"][1]["content"])
        draw, other = (zlib.crc32(f"{part}{given}".encode()) / 2**32 for part in "xy")
        better = "first" if "good" in given["first"] else "second"
        if draw < BIAS:
            better = "first"
        elif other < ERROR:
            better = {"first": "second", "second": "first"}[better]
        is_refused = server.fails_after is not None and server.answers >= server.fails_after
        content = json.dumps({"better": better})
        choice = {"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        body = json.dumps({"choices": [choice]}).encode()
        server.answers += not is_refused
        self.send_response(401 if is_refused else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with StubJudge() as server:
        serving = {"poll_interval": 0.02}
        threading.Thread(target=server.serve_forever, kwargs=serving, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def out(tmp_path, monkeypatch):
    """Two evaluations: the responses of rl are good for 3 of 4 prompts, those of sft for the rest.

    Every tenth prompt has equal responses.
    """
    monkeypatch.chdir(tmp_path)
    for name in ("rl", "sft"):
        rows = []
        for i in range(PROMPTS):
            is_good = (i % 4 > 0) == (name == "rl")
            text = "equal" if i % 10 == 9 else f"a good answer {i}" if is_good else f"an answer {i}"
            rows.append({"id": str(i), "prompt": f"Question {i}?", "response": text})
        write_jsonl(tmp_path / "eval" / f"{name}-test" / "rows.jsonl", rows)
    return tmp_path


def run(out, judge, *settings):
    main([f"output_dir={out}", "a=eval/rl-test", "b=eval/sft-test", f"judge={judge}", *settings])


def python_judge(out, monkeypatch, body):
    """A module of the user with a class `Mine`."""
    name = f"winrate_judge_{zlib.crc32(body.encode())}"
    (out / f"{name}.py").write_text(f"class Mine:\n    {body}\n")
    monkeypatch.syspath_prepend(str(out))
    return f"{{kind: python, of: {name}.Mine}}"


def test_a_judge_with_known_mistakes(out, server, capsys):
    run(out, server.settings)
    result = read_json(out / "winrate" / "rl-test_vs_sft-test" / "winrate.json")
    right = 1 - ERROR
    named = [(1 - BIAS) * right, BIAS + (1 - BIAS) * right]  # the better one: shown second, first
    missed = [(1 - BIAS) * ERROR, BIAS + (1 - BIAS) * ERROR]
    better, worse = named[0] * named[1], missed[0] * missed[1]
    good = (sum(i % 4 > 0 and i % 10 != 9 for i in range(PROMPTS))) / PROMPTS
    other = 0.9 - good
    win, lose = good * better + other * worse, good * worse + other * better
    for name, truth in (("win", win), ("lose", lose), ("tie", 1 - win - lose)):
        assert result[name]["low"] <= truth <= result[name]["high"]
    assert result["position bias"] == "the judge prefers the response shown first"
    expected = (named[1] + missed[1]) / 2
    assert result["first_preferred"]["low"] <= expected <= result["first_preferred"]["high"]
    assert server.answers == 2 * 0.9 * PROMPTS  # equal responses are not asked about
    printed = capsys.readouterr().out
    assert "rl-test against sft-test: 200 pairs, 20 of them equal" in printed
    assert "position bias: the judge prefers the response shown first" in printed
    rows = read_jsonl(out / "winrate" / "rl-test_vs_sft-test" / "judgements.jsonl")
    assert rows[9]["better"] == "tie" and "a shown first" not in rows[9]
    both = (rows[0]["a shown first"], rows[0]["b shown first"])
    assert rows[0]["better"] == (both[0] if both[0] == both[1] else "tie")


def test_nothing_is_asked_twice(out, server, capsys):
    server.fails_after = 100
    with pytest.raises(UserError, match="refuses the query: 401"):
        run(out, server.settings)
    assert not (out / "winrate" / "rl-test_vs_sft-test" / "winrate.json").exists()
    server.fails_after = None
    run(out, server.settings)
    assert server.answers == 360
    run(out, server.settings)
    assert "judged before, reusing" in capsys.readouterr().out
    run(out, server.settings, "name=again", "max_examples=50")  # other settings, known answers
    assert server.answers == 360


def test_agreement_with_people(out, server, capsys):
    people = []
    for i in range(40):
        row = {"prompt": f"Another {i}?", "responses": [f"good {i}", f"bad {i}"]}
        people.append({**row, "preferences": [[1, 0] if i % 4 == 0 else [0, 1]]})
    write_jsonl(out / "people.jsonl", people)
    run(out, server.settings, f"people={out / 'people.jsonl'}")
    result = read_json(out / "winrate" / "rl-test_vs_sft-test" / "winrate.json")
    assert 0.6 < result["agreement"]["mean"] < 0.9  # a judge that is right agrees with .75
    assert result["decided"]["mean"] < 1
    assert "agreement with people's votes" in capsys.readouterr().out


def test_scores_and_ties(out, monkeypatch, capsys):
    judge = python_judge(
        out, monkeypatch, "def score(self, prompts, texts): return [len(t) for t in texts]"
    )
    run(out, judge)
    result = read_json(out / "winrate" / "rl-test_vs_sft-test" / "winrate.json")
    assert result["win"]["mean"] == pytest.approx(0.65) and "position bias" not in result
    rows = read_jsonl(out / "winrate" / "rl-test_vs_sft-test" / "judgements.jsonl")
    assert (rows[1]["score a"], rows[1]["score b"], rows[1]["better"]) == (15, 11, "a")
    run(out, judge, "tie=10")
    result = read_json(out / "winrate" / "rl-test_vs_sft-test" / "winrate.json")
    assert result["tie"]["mean"] == 1


def test_a_class_that_sees_both(out, monkeypatch):
    judge = python_judge(
        out, monkeypatch, "def compare(self, prompts, firsts, seconds): return [2] * len(prompts)"
    )
    run(out, judge, "sees=both")
    result = read_json(out / "winrate" / "rl-test_vs_sft-test" / "winrate.json")
    assert result["tie"]["mean"] == 1 and result["first_preferred"]["mean"] == 0
    assert result["position bias"] == "the judge prefers the response shown second"
    judge = python_judge(
        out, monkeypatch, "def compare(self, *texts): return [1.7] * len(texts[0])"
    )
    with pytest.raises(UserError, match="`compare` must return 1"):
        run(out, judge, "sees=both")
    judge = python_judge(out, monkeypatch, "def compare(self, *_): return [3]")
    with pytest.raises(UserError, match=r"returned \[3\] for 360 pairs: `compare` must return 1"):
        run(out, judge, "sees=both")


def test_samples_and_clusters(out, monkeypatch):
    for name in ("rl", "sft"):
        rows = [
            {"id": str(i), "sample": k, "cluster": f"page {i // 2}", "prompt": str(i)}
            | {"response": f"{'longer ' * (name == 'rl' and i % 3 > 0)}answer {k}"}
            for i in range(40)
            for k in range(2 if name == "rl" else 3)  # the third one has no partner
        ]
        write_jsonl(out / "eval" / f"{name}-test" / "rows.jsonl", rows)
    judge = python_judge(
        out, monkeypatch, "def score(self, prompts, texts): return [len(t) for t in texts]"
    )
    run(out, judge)
    result = read_json(out / "winrate" / "rl-test_vs_sft-test" / "winrate.json")
    assert result["note"] == (
        "80 pairs, 28 of them equal; 95% intervals over 20 clusters of 40 prompts;"
        " responses without a counterpart, left out: 40 of sft-test"
    )


def test_rows_without_numbers_meet_by_their_order(out, monkeypatch):
    """Neither does one response of b meet two of a, nor does a later row hide an earlier one."""
    path = out / "eval" / "rl-test" / "rows.jsonl"
    rows = read_jsonl(path)
    write_jsonl(path, [*rows, {**rows[0], "response": "another"}])
    judge = python_judge(
        out, monkeypatch, "def score(self, prompts, texts): return [len(t) for t in texts]"
    )
    for a, b in (("rl", "sft"), ("sft", "rl")):
        main([f"output_dir={out}", f"a=eval/{a}-test", f"b=eval/{b}-test", f"judge={judge}"])
        folder = out / "winrate" / f"{a}-test_vs_{b}-test"
        first = read_jsonl(folder / "judgements.jsonl")[0]
        assert first["a" if a == "rl" else "b"] == rows[0]["response"]
        note = read_json(folder / "winrate.json")["note"]
        assert note.startswith("200 pairs") and note.endswith("left out: 1 of rl-test")


def test_folders_of_one_name(out, monkeypatch, capsys):
    judge = python_judge(
        out, monkeypatch, "def score(self, prompts, texts): return [0.0] * len(texts)"
    )
    (out / "s1").symlink_to(out / "eval")
    main([f"output_dir={out}", "a=eval/rl-test", "b=s1/rl-test", f"judge={judge}"])
    assert (out / "winrate" / "eval-rl-test_vs_s1-rl-test" / "winrate.json").exists()
    assert "s1/rl-test wins" in capsys.readouterr().out
    with pytest.raises(UserError, match="a and b are the same evaluation"):
        main([f"output_dir={out}", "a=eval/rl-test", "b=eval/rl-test/", f"judge={judge}"])


@pytest.mark.parametrize(
    "settings, message",
    [
        (["a=eval/ppo-test"], "eval/ppo-test has no rows.jsonl.*it has eval/rl-test, eval/sft-te"),
        (["sees=both"], "kind linear scores one response: set sees=one"),
        (["people=rows.jsonl"], "rows.jsonl does not exist"),
    ],
)
def test_mistakes(out, settings, message):
    with pytest.raises(UserError, match=message):
        run(out, "{kind: linear, ckpt: scorer}", *settings)
    assert not (out / "winrate").exists()


def test_prompts_that_differ(out):
    path = out / "eval" / "sft-test" / "rows.jsonl"
    rows = read_jsonl(path)
    write_jsonl(path, [{**rows[0], "prompt": "Another?"}, *rows[1:]])
    with pytest.raises(UserError, match="the prompt 0 has another text in a than in b"):
        run(out, "{kind: linear, ckpt: scorer}")
    write_jsonl(path, [{**row, "id": f"x{row['id']}"} for row in rows])
    with pytest.raises(UserError, match="a and b have no prompt in common"):
        run(out, "{kind: linear, ckpt: scorer}")


def test_a_task_reads_the_prompts_that_were_evaluated(out, monkeypatch):
    """All keys of the file, which a reward model of the task may read."""
    judge = python_judge(
        out,
        monkeypatch,
        "def score(self, prompts, texts): return [p.meta.get('likes', '-') in t for p, t in"
        " zip(prompts, texts)]",
    )
    settings = WinrateSettings.model_validate(
        {"a": "eval/rl-test", "b": "eval/sft-test", "judge": yaml.safe_load(judge)}
    )
    task = Task("poems")
    result = out / "winrate" / "rl-test_vs_sft-test" / "winrate.json"
    compare_policies(task, settings)
    assert read_json(result)["tie"]["mean"] == 1  # nothing says what people like
    write_text(out / "eval" / "rl-test" / "config.yaml", "data_dir: data\nsplit: test\n")
    rows = [{"id": str(i), "prompt": f"Question {i}?", "likes": "good"} for i in range(PROMPTS)]
    write_jsonl(out / "data" / "test.jsonl", rows)
    compare_policies(task, settings)
    assert read_json(result)["win"]["mean"] == pytest.approx(0.65)
    write_jsonl(out / "data" / "test.jsonl", [{**rows[0], "prompt": "Another?"}, *rows[1:]])
    with pytest.raises(UserError, match="the prompt 0 of a is not the one in the file"):
        compare_policies(task, settings)
    compare_policies(NO_TASK, settings)  # which does not know how to read it
    assert read_json(result)["tie"]["mean"] == 1
