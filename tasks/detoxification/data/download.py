"""Fetch RealToxicityPrompts and the posts with toxic spans, and verify them.

    python -m tasks.detoxification.data.download data_dir=FOLDER

RealToxicityPrompts (Gehman et al. 2020, Apache-2.0) comes from the Hugging Face hub; its SHA-256
must be the one that the hub lists. The posts of SemEval-2021 task 5 (Pavlopoulos et al., CC0) come
from their repository; their git blob id is fixed here.
"""

from pathlib import Path

from huggingface_hub import HfApi, hf_hub_download
from pydantic import Field

from fgrlhf.cli.command_line import settings_from
from fgrlhf.data.download import DownloadConfig, download
from fgrlhf.errors import UserError, run_main, shorten
from fgrlhf.files import sha256
from tasks.detoxification.data.prepare import RATED_FILE, SPANS_FILE

HUB_NAME = "allenai/real-toxicity-prompts"
SPANS_BLOB_IDS = {SPANS_FILE: "dfadb2c7f9c4017a29d7eee36ea3fd77eebbde25"}
SPANS_URL = (
    "https://raw.githubusercontent.com/ipavlopoulos/toxic_spans/"
    "fb9f14058b8791a972ee45450869a8a0da1eead3/SemEval2021/data"
)


class Settings(DownloadConfig):
    base_url: str = Field(default=SPANS_URL, description=f"address of the folder with {SPANS_FILE}")


def fetch_rated(folder: str | Path) -> Path:
    """Fetch RealToxicityPrompts from the hub; an interrupted download is continued.

    A file that is already there is kept: its rows are checked when they are read.

    Raises:
      UserError: the hub cannot be reached, or sends another file than it lists.
    """
    path = Path(folder) / RATED_FILE
    if path.exists():
        print(f"{path}: already there")
        return path
    try:
        (listed,) = HfApi().get_paths_info(HUB_NAME, [RATED_FILE], repo_type="dataset")
        partial = hf_hub_download(
            HUB_NAME, RATED_FILE, repo_type="dataset", local_dir=path.parent / "hub.part"
        )
    except Exception as error:  # the hub's client raises many kinds
        raise UserError(
            f"{RATED_FILE} cannot be fetched from hub:{HUB_NAME}: {shorten(error)}. Is there a"
            f" network? Run the same command again, or put the file at {path}"
        ) from None
    stored = getattr(listed, "lfs", None)  # None for a file that the hub keeps in git
    expected = None if stored is None else stored.sha256
    received = sha256(partial)
    if received != expected:
        Path(partial).unlink()
        raise UserError(
            f"hub:{HUB_NAME} sent a {RATED_FILE} with SHA-256 {received}, but lists {expected}. It"
            " was not kept; run the same command again"
        )
    Path(partial).replace(path)
    print(f"{path}: fetched, verified")
    return path


def main() -> None:
    settings = settings_from(Settings)
    download(settings, SPANS_BLOB_IDS)
    fetch_rated(settings.data_dir)


if __name__ == "__main__":
    run_main(main)
