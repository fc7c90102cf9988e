"""Fetch GSM8K and verify it.

    python -m tasks.reasoning.data.download data_dir=FOLDER

Cobbe et al. (2021), MIT licence, from the Hugging Face hub. The SHA-256 of each file must be the
one that the hub lists.
"""

from pathlib import Path

from pydantic import Field

from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.data.download import fetch_from_hub

HUB_NAME = "openai/gsm8k"
FILES = ("main/train-00000-of-00001.parquet", "main/test-00000-of-00001.parquet")


class DownloadSettings(StrictModel):
    """Where the files go."""

    data_dir: FilePath = Field(description="folder of the downloaded files")


def fetch(settings: DownloadSettings) -> None:
    for name in FILES:
        fetch_from_hub(HUB_NAME, name, Path(settings.data_dir) / Path(name).name)


if __name__ == "__main__":
    run_program(fetch, DownloadSettings)
