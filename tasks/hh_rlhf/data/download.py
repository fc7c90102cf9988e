"""Fetch the dialogs of HH-RLHF and verify them.

    python -m tasks.hh_rlhf.data.download data_dir=FOLDER [subsets=[harmless-base,helpful-base]]

Bai et al. (2022), MIT licence, from the Hugging Face hub. The SHA-256 of each file must be the one
that the hub lists.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.data.download import fetch_from_hub

HUB_NAME = "Anthropic/hh-rlhf"
FILES = ("train.jsonl.gz", "test.jsonl.gz")
Subset = Literal["harmless-base", "helpful-base", "helpful-online", "helpful-rejection-sampled"]


class DownloadSettings(StrictModel):
    """Which files to fetch."""

    data_dir: FilePath = Field(description="folder of the downloaded files")
    subsets: list[Subset] = Field(
        default=["harmless-base", "helpful-base"], min_length=1, description="of the data set"
    )


def fetch(settings: DownloadSettings) -> None:
    for subset in settings.subsets:
        for name in FILES:
            fetch_from_hub(HUB_NAME, f"{subset}/{name}", Path(settings.data_dir) / subset / name)


if __name__ == "__main__":
    run_program(fetch, DownloadSettings)
