"""`fgrlhf paper`: tables whose numbers can be traced, and LaTeX of any text."""

import csv
import re
import shutil
import subprocess
from xml.etree import ElementTree

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json, write_jsonl, write_text
from fgrlhf.report.latex import breakable, declarations, document, escaped, table
from fgrlhf.report.paper import main, number_at, pointer, resolved
from fgrlhf.report.pictures import CurvesOfRun, over_seeds

ODD = r"[a]_b%c&d#e{f}$g^h~i\j<k>|l\"m'n`o--p* 中文 العربية 😀 –é"
INTERVAL = {"mean": 0.5, "low": 0.4, "high": 0.6}


@pytest.fixture
def outputs(tmp_path):
    """A folder with a result of every kind."""
    for name, value in (("sft", 0.25), ("rl", 0.5)):
        folder = tmp_path / "eval" / f"{name}-test"
        summary = {"reward/moves": {**INTERVAL, "mean": value}, "kl": {"mean": -0.1, "low": None}}
        write_json(folder / "summary.json", summary)
        info = {
            "command": f"fgrlhf evaluate policy={name} x=50%",
            "seed": 3,
            "git_commit": "c" * 40,
        }
        write_json(folder / "run.json", {**info, "versions": {"torch": "2"}, "task": "t"})
        write_text(folder / "config.yaml", f"split: test\npolicy: {name}\n")
    won = {"a": "x", "win": INTERVAL, "win_rate": INTERVAL, "agreement": "undefined: nobody"}
    write_json(tmp_path / "winrate" / "rl_vs_sft" / "winrate.json", won)
    metrics = {"accuracy": 0.9, "intervals": {"accuracy": INTERVAL}}
    write_json(tmp_path / "rel_rm" / "reward_model.json", {"kind": "x", "metrics": metrics})
    human = {
        "task": "poems",
        "policies": {"rl": {}, "sft": {}},
        "annotators": {"Anna Muster": 20, "Ben": 18},
        "items": 20,
        "prompts": 20,
        "clusters": 10,
        "tables": [{"title": "Share & more", "columns": ["any"], "rows": {ODD: {"any": INTERVAL}}}],
        "agreement": {"preference alpha": INTERVAL, "undefined": "undefined: x"},
    }
    write_json(tmp_path / "human_eval.json", human)
    write_json(
        tmp_path / "agreement.json", {"counts": {"items": 7}, "items by annotator": {"a": 7}}
    )
    return tmp_path


def rows_of(path):
    return list(csv.DictReader(path.open(encoding="utf-8", newline="")))


def test_every_number_is_where_it_says(outputs):
    main([str(outputs)])
    numbers = rows_of(outputs / "paper" / "numbers.csv")
    assert len(numbers) == 8
    runs = {run["run"]: run for run in rows_of(outputs / "paper" / "runs.csv")}
    for number in numbers:
        value = resolved(read_json(outputs / number["file"]), number["place"])
        assert float(number["value"]) == value["mean"]
        assert number["low"] == ("" if value.get("low") is None else str(value["low"]))
        if number["table"] == "metrics-test":
            run = runs[number["run"]]
            assert run["seed"] == "3" and run["policy"] == number["column"]
            assert run["command"] == f"fgrlhf evaluate policy={number['column']} x=50%"
    assert {number["table"] for number in numbers} == {
        *("metrics-test", "win-rates", "reward-models", "human-eval-1")
    }


def test_the_tables(outputs):
    main([str(outputs)])
    text = (outputs / "paper" / "tables.tex").read_text()
    assert r"reward/moves & 0.500 [0.400, 0.600] & 0.250 [0.400, 0.600] \\" in text
    assert r"kl & $-$0.100 & $-$0.100 \\" in text
    assert r"\caption{Share \& more (human annotators)}" in text
    assert (outputs / "paper" / "tables" / "metrics-test.csv").read_text().splitlines()[0] == (
        ",rl,rl low,rl high,sft,sft low,sft high"
    )
    sheet = (outputs / "paper" / "datasheet.md").read_text()
    assert "Annotators: 2, who judged 20, 18 items" in sheet and "Anna" not in sheet
    assert "- preference alpha: 0.500 [0.400, 0.600]" in sheet
    assert re.search(r"^- Pay per hour.*: ____$", sheet, re.M)


def test_it_is_written_again(outputs):
    main([str(outputs)])
    first = (outputs / "paper" / "numbers.csv").read_bytes()
    shutil.rmtree(outputs / "winrate")
    main([str(outputs)])
    assert not (outputs / "paper" / "tables" / "win-rates.csv").exists()
    assert (outputs / "paper" / "numbers.csv").read_bytes() != first


def test_a_comparison(tmp_path):
    seeds = {"0": {"score": 0.5, "kl": None}, "1": {"score": 0.7, "kl": None}}
    for seed in seeds.values():
        points = [{"episodes": x, "seconds": x, "score": seed["score"], "kl": None} for x in (0, 8)]
        seed["curve"] = points
    pair = {**INTERVAL, "p": 0.01, "p_corrected": 0.02, "real": True}
    content = {"metric": "gold", "runs": {"ppo": {"seeds": seeds}}, "seeds": [0, 1]}
    write_json(tmp_path / "summary.json", {**content, "differences": {"ppo_vs_sft": pair}})
    main([str(tmp_path), f"out={tmp_path / 'p'}"])
    numbers = {row["place"]: row for row in rows_of(tmp_path / "p" / "numbers.csv")}
    assert float(numbers["/runs/ppo/seeds/1/score"]["value"]) == 0.7
    assert numbers["/differences/ppo_vs_sft"]["p_corrected"] == "0.02"
    assert numbers["/differences/ppo_vs_sft"]["row"] == "ppo - sft"
    (picture,) = rows_of(tmp_path / "p" / "pictures.csv")
    assert picture["title"] == "gold on dev: mean and 95% interval over 2 seeds"
    assert (picture["picture"], picture["files"]) == ("pictures/learning-gold.svg", "summary.json")


def test_the_pictures_and_where_they_come_from(outputs):
    lines = []
    for step, score in ((0, 0.2), (10, 0.4)):
        bounds = {"eval_low/reward": score - 0.1, "eval_high/reward": score + 0.1}
        lines.append({"step": step, "episodes": 8 * step, "eval/reward": score, **bounds})
    lines[0] |= {"reward/total": 0.1, "loss/total": 0.1}
    write_jsonl(outputs / "ppo" / "metrics.jsonl", lines)
    write_json(outputs / "ppo" / "run.json", {"command": "fgrlhf rl", "task": "t"})
    policies = {}
    for name, on_front in (("rl", True), ("sft", False)):
        value = {**INTERVAL, "low": None}
        policies[name] = {"values": {"gold": INTERVAL, "length": value}, "on_front": on_front}
    write_json(outputs / "pareto" / "pareto.json", {"policies": policies, "worst": {}})
    main([str(outputs)])
    pictures = {row["picture"]: row for row in rows_of(outputs / "paper" / "pictures.csv")}
    assert {name: (row["files"], row["runs"]) for name, row in pictures.items()} == {
        "pictures/learning-reward.svg": ("ppo/metrics.jsonl", "ppo"),
        "pictures/reward-moves-test.svg": (
            "eval/rl-test/summary.json eval/sft-test/summary.json",
            "eval/rl-test eval/sft-test",
        ),
        "pictures/front-pareto.svg": ("pareto/pareto.json", ""),
    }
    for name in pictures:
        root = ElementTree.parse(outputs / "paper" / name).getroot()
        assert root.get("width") and "var(--" not in (outputs / "paper" / name).read_text()
    shutil.rmtree(outputs / "pareto")
    main([str(outputs)])
    assert not (outputs / "paper" / "pictures" / "front-pareto.svg").exists()


def test_learning_curves_of_a_comparison_have_intervals_over_seeds():
    """Student's t with one degree of freedom: the mean plus or minus 12.706 s / sqrt(2)."""
    points = [[{"episodes": x, "score": y + x} for x in (0, 8)] for y in (0.0, 1.0)]
    points[1].append({"episodes": 16, "score": 0.0})  # the other seed has stopped
    seeds = {str(seed): {"curve": curve} for seed, curve in enumerate(points)}
    band = over_seeds(CurvesOfRun.model_validate({"seeds": seeds}))
    assert band is not None
    assert band.x.tolist() == [0, 8] and band.y.tolist() == [0.5, 8.5]
    reach = 12.706205 * 0.5**0.5 / 2**0.5
    assert band.high.tolist() == pytest.approx([0.5 + reach, 8.5 + reach])
    assert band.low.tolist() == pytest.approx([0.5 - reach, 8.5 - reach])
    alone = over_seeds(CurvesOfRun.model_validate({"seeds": {"0": {"curve": points[0]}}}))
    assert alone is not None and alone.low.tolist() == alone.high.tolist() == [0, 8]
    assert over_seeds(CurvesOfRun.model_validate({"seeds": {"0": {"curve": []}}})) is None


@pytest.mark.parametrize("name", ["out", "lr=1e-5", "sweep/lr=1e-5/a"])
def test_folders_of_any_name(outputs, monkeypatch, name):
    (outputs / name).mkdir(parents=True)
    shutil.move(outputs / "eval", outputs / name)
    monkeypatch.chdir(outputs)
    main([name])
    assert (outputs / name / "paper" / "numbers.csv").exists()


def test_mistakes(tmp_path, outputs):
    with pytest.raises(UserError, match="did you mean `output_dir`"):
        main([f"ouput_dir={outputs}"])
    with pytest.raises(UserError, match="is no folder: give the output_dir"):
        main([str(tmp_path / "none")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="has no results yet"):
        main([str(tmp_path / "empty")])
    with pytest.raises(UserError, match="is the folder of the results"):
        main([str(outputs), f"out={outputs}"])
    with pytest.raises(UserError, match="is a file: name a folder with out="):
        main([str(outputs), f"out={outputs / 'eval/rl-test/summary.json'}"])
    with pytest.raises(UserError, match="has other files than those"):
        main([str(outputs), f"out={outputs / 'eval'}"])
    write_json(outputs / "human_eval.json", {"tables": [{"title": 1}]})
    with pytest.raises(UserError, match=r"human_eval.json"):
        main([str(outputs)])
    assert not (outputs / "paper").exists()


def test_pointers():
    assert pointer("a/b", "c~d", "0") == "/a~1b/c~0d/0"
    tree = {"a/b": {"c~d": [5]}}
    assert resolved(tree, "/a~1b/c~0d/0") == 5
    assert number_at(True, "f") is None and number_at("undefined: x", "f") is None


# ---- LaTeX ---------------------------------------------------------------------------------------


def test_special_characters_are_commands():
    assert escaped(r"50% a_b & c#1 {x} $y ~ ^ \z") == (
        r"50\% a\_b \& c\#1 \{x\} \$y \textasciitilde{} \textasciicircum{} \textbackslash{}z"
    )
    assert escaped("a\n\n b\x00\u202e") == "a b"  # no paragraph, nothing invisible
    assert escaped("[x]") == "{[}x]" and escaped("--") == "{-}{-}"
    assert breakable("a/b") == r"\texttt{a/\allowbreak{}b}"


def test_other_scripts_are_declared():
    lines = declarations("é – 中 😀 中")
    assert lines == [
        r"\ifPDFTeX",
        r"\DeclareUnicodeCharacter{4E2D}{U+4E2D}",
        r"\DeclareUnicodeCharacter{1F600}{U+1F600}",
        r"\fi",
    ]
    assert declarations("é –") == []


def test_braces_balance():
    text = re.sub(r"\\[{}]", "", document([table(ODD, "tab:x", [escaped(ODD)], [[escaped(ODD)]])]))
    assert text.count("{") == text.count("}") > 20


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdfLaTeX")
def test_the_document_compiles(outputs):
    main([str(outputs)])
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=outputs / "paper", capture_output=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
