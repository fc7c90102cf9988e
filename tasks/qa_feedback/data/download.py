"""Fetch the published qa-feedback files and verify them (fgrlhf/data/download.py).

python -m tasks.qa_feedback.data.download data_dir=tasks/qa_feedback/data
"""

from pydantic import Field

from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.data.download import DownloadConfig, download

# git blob ids of the files at the commit a1469d4
BLOB_IDS = {
    "train.json": "73bc80853de76808bbdefdc43d35c7d7957830ef",
    "dev.json": "759cbff66d8975b779434306356a0272570eb0ac",
    "test.json": "24f7eb93a84c994e5101c7ce6ec83ec591a191eb",
    "train_1k.json": "6e5f4de896c251aeb8e1276ae4d5c36e4991deab",
    "train_feedback.json": "10a5469b8f73f9b276c86f911acc4d2336b076bc",
    "dev_feedback.json": "6b6efddd2daf0d17c917f7773435b357b172d5c9",
}
PUBLISHED = (
    "https://raw.githubusercontent.com/allenai/FineGrainedRLHF/a1469d4/tasks/qa_feedback/data"
)


class DownloadSettings(DownloadConfig):
    base_url: str = Field(
        default=PUBLISHED, description="address of the folder that holds the files"
    )


def main() -> None:
    download(settings_from(DownloadSettings), BLOB_IDS)


if __name__ == "__main__":
    run_main(main)
