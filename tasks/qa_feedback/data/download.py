"""Fetch the published qa-feedback files, verify them by their git blob ids, continue after an
interruption.

    python -m tasks.qa_feedback.data.download data_dir=tasks/qa_feedback/data

A file is first written to <name>.part and takes its name once its contents are verified. The blob
id covers size and contents: a wrong, changed or half file is never mistaken for the published one.
"""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field, field_validator
from tqdm import tqdm

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.errors import UserError, run_main, shorten

BLOB_IDS = {
    "train.json": "73bc80853de76808bbdefdc43d35c7d7957830ef",
    "dev.json": "759cbff66d8975b779434306356a0272570eb0ac",
    "test.json": "24f7eb93a84c994e5101c7ce6ec83ec591a191eb",
    "train_1k.json": "6e5f4de896c251aeb8e1276ae4d5c36e4991deab",
    "train_feedback.json": "10a5469b8f73f9b276c86f911acc4d2336b076bc",
    "dev_feedback.json": "6b6efddd2daf0d17c917f7773435b357b172d5c9",
}
BLOCK = 1 << 16


PUBLISHED = "https://raw.githubusercontent.com/allenai/FineGrainedRLHF/{ref}/tasks/qa_feedback/data"


class DownloadConfig(StrictModel):
    data_dir: str
    base_url: str = PUBLISHED.format(ref="a1469d4")
    attempts: int = Field(4, ge=1, le=100, description="of one file before the program gives up")
    timeout: float = Field(30.0, gt=0, le=3600, description="seconds to wait for the server")

    @field_validator("base_url")
    @classmethod
    def _web_address(cls, url: str) -> str:
        try:
            parts = urllib.parse.urlsplit(url)
            parts.port  # a port that is no number raises here
        except ValueError as error:
            raise ValueError(f"`{shorten(url)}` is not a web address: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"`{shorten(url)}` is not a web address: it must begin with http:// or https:// and"
                " a host"
            )
        if not url.isascii() or any(character.isspace() for character in url):
            raise ValueError(
                f"`{shorten(url)}` is not a web address: write white space and letters like é as"
                " %20, %C3%A9"
            )
        return url


def blob_id(path: str | Path) -> str:
    """The id git gives a file: SHA-1 of "blob <size>\\0" and the contents."""
    path = Path(path)
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode())
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _blob_id_or_none(path: Path) -> str | None:
    """None for what cannot be read as a file: a folder, a link to nothing, a file of somebody
    else's.
    """
    try:
        return blob_id(path)
    except OSError:
        return None


def download(config: DownloadConfig) -> list[Path]:
    """Fetch what is missing; the paths of the files fetched.

    Raises:
      UserError: something else of that name is in the way (then nothing is fetched), the folder
        cannot be written to, the server cannot be reached or lacks the file, or what it sends is
        not the published file. What was received of a file stays in its .part.
    """
    folder = Path(config.data_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the folder {folder} cannot be made: {error.strerror}. Choose another: DATA_DIR=..."
        ) from None
    wanted = {folder / name: blob for name, blob in BLOB_IDS.items()}
    present = [path for path in wanted if os.path.lexists(path)]
    others = [str(path) for path in present if _blob_id_or_none(path) != wanted[path]]
    if others:
        raise UserError(
            f"{', '.join(others)}: exists already and is not the published file. Move it away to"
            " fetch the published one, or choose another folder: DATA_DIR=..."
        )
    for path in present:
        print(f"{path}: there already, verified")
    fetched = [path for path in wanted if path not in present]
    for path in fetched:
        _fetch(config, path, wanted[path])
        print(f"{path}: fetched, verified")
    return fetched


def _fetch(config: DownloadConfig, path: Path, blob: str) -> None:
    """Receive into <path>.part, going on where an earlier attempt stopped, then verify and
    rename.
    """
    part, url = path.with_name(path.name + ".part"), f"{config.base_url.rstrip('/')}/{path.name}"
    for attempt in range(config.attempts):
        resumed = _size(part)
        try:
            _receive(url, part, config.timeout)
        except (
            OSError,
            http.client.HTTPException,
            UnicodeError,
        ) as error:  # UnicodeError: a host name that cannot be
            if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429:
                raise UserError(
                    f"{url}: the server answers {error.code} {shorten(error.reason)}. Give another"
                    f" address, e.g. base_url={PUBLISHED.format(ref='main')}: contents are verified"
                    " all the same"
                ) from None
            if attempt + 1 == config.attempts:
                raise UserError(_unreachable(url, part, error)) from None
            time.sleep(min(2.0**attempt, config.timeout))
            continue
        with _writing(part):
            received = blob_id(part)
            if received == blob:
                part.replace(path)
                return
            part.unlink()
        if not resumed:
            raise UserError(
                f"{url} is not the published file: its git blob id is {received}, "
                f"expected {blob}. It was not kept"
            )
    raise UserError(
        f"{url}: what was continued never matched the published file. It was not kept; run this"
        " again"
    )


def _receive(url: str, part: Path, timeout: float) -> None:
    """Append to `part` what it lacks, or begin anew where the server cannot continue. OSError if
    cut off.
    """
    start = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if (
            error.code == 416
        ):  # nothing follows: `part` is whole, or of something else; its blob id will tell
            return
        raise
    with response:
        continues = response.status == 206 and response.headers.get("Content-Range", "").startswith(
            f"bytes {start}-"
        )
        length = response.headers.get("Content-Length")
        known = length is not None and length.isdecimal() and len(length) < 16
        expected = int(length) + (start if continues else 0) if known else None
        with _writing(part):
            file = open(part, "ab" if continues else "wb")
        with (
            file,
            tqdm(
                total=expected,
                initial=start if continues else 0,
                unit="B",
                unit_scale=True,
                desc=part.stem,
                disable=None,
            ) as bar,
        ):
            for block in _blocks(response):
                with _writing(part):
                    file.write(block)
                    file.flush()  # a full disk is noticed here, not when the file is closed
                bar.update(len(block))
    if expected is not None and _size(part) < expected:
        raise ConnectionError(f"the connection ended after {_size(part)} of {expected} bytes")


@contextmanager
def _writing(part: Path) -> Iterator[None]:
    """Turn an error of the disk, which no new attempt mends, into a `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{part} cannot be written: {error.strerror}. Make room or clear the way there, or"
            " choose another folder: DATA_DIR=..., and run the same command again; it goes on"
            " where it stopped"
        ) from None


def _size(part: Path) -> int:
    """Bytes received so far; 0 where there is no such file."""
    return part.stat().st_size if part.is_file() else 0


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while block := response.read(BLOCK):
        yield block


def _unreachable(url: str, part: Path, error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    kept = (
        f"{part} keeps the {_size(part)} bytes received" if _size(part) else "Nothing was written"
    )
    return (
        f"{url} cannot be fetched: {shorten(reason)}. Is there a network? {kept}; "
        "run the same command again to go on. `SCALE=mini` needs no download."
    )


def main() -> None:
    download(settings_from(DownloadConfig))


if __name__ == "__main__":
    run_main(main)
