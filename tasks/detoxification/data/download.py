"""Fetch RealToxicityPrompts and the posts with toxic spans, and verify them.

    python -m tasks.detoxification.data.download data_dir=FOLDER

RealToxicityPrompts (Gehman et al. 2020, Apache-2.0) comes from the Hugging Face hub; its SHA-256
must be the one that the hub lists. The posts of SemEval-2021 task 5 (Pavlopoulos et al., CC0) come
from their repository; their git blob id is fixed here.
"""

from pathlib import Path

from pydantic import Field

from fgrlhf.cli.command_line import run_program
from fgrlhf.data.download import DownloadConfig, download, fetch_from_hub
from tasks.detoxification.data.prepare import RATED_FILE, SPANS_FILE

HUB_NAME = "allenai/real-toxicity-prompts"
SPANS_BLOB_IDS = {SPANS_FILE: "dfadb2c7f9c4017a29d7eee36ea3fd77eebbde25"}
SPANS_URL = (
    "https://raw.githubusercontent.com/ipavlopoulos/toxic_spans/"
    "fb9f14058b8791a972ee45450869a8a0da1eead3/SemEval2021/data"
)


class DownloadSettings(DownloadConfig):
    base_url: str = Field(default=SPANS_URL, description=f"address of the folder with {SPANS_FILE}")


def fetch(settings: DownloadSettings) -> None:
    download(settings, SPANS_BLOB_IDS)
    fetch_from_hub(HUB_NAME, RATED_FILE, Path(settings.data_dir) / RATED_FILE)


if __name__ == "__main__":
    run_program(fetch, DownloadSettings)
