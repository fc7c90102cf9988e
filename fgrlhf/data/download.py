"""Fetch published files, verify them by their git blob ids, continue after an interruption.

A file is first written to <name>.part and takes its name once its contents are verified. The blob
id covers size and contents: a wrong, changed or half file is never taken for the published one.
"""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field, field_validator
from tqdm import tqdm

from fgrlhf.config import StrictModel
from fgrlhf.errors import UserError, shorten
from fgrlhf.runs.progress import progress_bar

BLOCK = 1 << 16


class DownloadConfig(StrictModel):
    """Settings of a task's download program, which gives `base_url` its default."""

    data_dir: str
    base_url: str = Field(description="address of the folder that holds the files")
    attempts: int = Field(
        default=4, ge=1, le=100, description="for one file, before the program gives up"
    )
    timeout: float = Field(
        default=30.0, gt=0, le=3600, description="seconds to wait for the server"
    )

    @field_validator("base_url")
    @classmethod
    def _web_address(cls, url: str) -> str:
        problem = _address_problem(url)
        if problem is not None:
            raise ValueError(f"`{shorten(url)}` is not a web address: {problem}")
        return url


def _address_problem(url: str) -> str | None:
    """Why nothing can be fetched from `url`; None where something can."""
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # a port that is no number raises here
    except ValueError as error:
        return str(error)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "it must begin with http:// or https:// and a host"
    if not url.isascii() or any(character.isspace() for character in url):
        return "write white space and letters like é as %20, %C3%A9"
    return None


def blob_id(path: str | Path) -> str:
    """The id git gives a file: SHA-1 of "blob <size>\\0" and the contents."""
    path = Path(path)
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode())
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _blob_id_or_none(path: Path) -> str | None:
    """None for what cannot be read as a file: a folder, a dangling link, a file of another user."""
    try:
        return blob_id(path)
    except OSError:
        return None


def download(config: DownloadConfig, blob_ids: Mapping[str, str]) -> list[Path]:
    """Fetch the files that are missing; the paths of the files fetched.

    Args:
      blob_ids: name of each file -> its git blob id.

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
    wanted = {folder / name: blob for name, blob in blob_ids.items()}
    present = [path for path in wanted if os.path.lexists(path)]
    others = [str(path) for path in present if _blob_id_or_none(path) != wanted[path]]
    if others:
        raise UserError(
            f"{', '.join(others)}: exists already and is not the published file. Move it away to"
            " fetch the published one, or choose another folder: DATA_DIR=..."
        )
    for path in present:
        print(f"{path}: there already, verified")
    missing = [path for path in wanted if path not in present]
    for path in missing:
        _fetch(config, path, wanted[path])
        print(f"{path}: fetched, verified")
    return missing


def _fetch(config: DownloadConfig, path: Path, blob: str) -> None:
    """Receive into <path>.part, continuing an earlier attempt, then verify and rename."""
    part = path.with_name(path.name + ".part")
    url = f"{config.base_url.rstrip('/')}/{path.name}"
    for attempt in range(config.attempts):
        continued = _size(part) > 0
        try:
            _receive(url, part, config.timeout)
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            # UnicodeError: the host's name cannot be looked up
            if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429:
                raise UserError(
                    f"{url}: the server answers {error.code} {shorten(error.reason)}. Give another"
                    " address with base_url=...; contents are verified all the same"
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
        if not continued:
            raise UserError(
                f"{url} is not the published file: its git blob id is {received}, "
                f"expected {blob}. It was not kept"
            )
    raise UserError(
        f"{url}: what was continued never matched the published file. It was not kept; run this"
        " again"
    )


def _receive(url: str, part: Path, timeout: float) -> None:
    """Append the missing bytes to `part`, or start over where the server cannot continue.

    Raises:
      OSError: the connection ended before the last byte, or there was none.
    """
    start = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if (
            error.code == 416
        ):  # no bytes follow: `part` is whole, or wrong, as its blob id will show
            return
        raise
    with response:
        if not _continues(response, start):
            start = 0
        length = _length(response)
        expected = None if length is None else start + length
        with _writing(part):
            file = open(part, "ab" if start else "wb")  # noqa: SIM115 (closed below)
        with file, _progress(part, start, expected) as bar:
            for block in _blocks(response):
                with _writing(part):
                    file.write(block)
                    file.flush()  # a full disk is noticed here, not when the file is closed
                bar.update(len(block))
    if expected is not None and _size(part) < expected:
        raise ConnectionError(f"the connection ended after {_size(part)} of {expected} bytes")


def _continues(response: http.client.HTTPResponse, start: int) -> bool:
    """Whether the server sends the bytes from `start` on, as asked."""
    content_range = response.headers.get("Content-Range", "")
    return response.status == 206 and content_range.startswith(f"bytes {start}-")


def _length(response: http.client.HTTPResponse) -> int | None:
    """How many bytes the server says will follow; None where it does not say."""
    length = response.headers.get("Content-Length")
    if length is None or not length.isdecimal() or len(length) >= 16:
        return None
    return int(length)


def _progress(part: Path, start: int, expected: int | None) -> tqdm:
    return progress_bar(expected, part.stem, "B", initial=start, unit_scale=True)


@contextmanager
def _writing(part: Path) -> Iterator[None]:
    """Turn an error of the disk, which another attempt would meet again, into a `UserError`."""
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
    size = _size(part)
    state = f"{part} keeps the {size} bytes received" if size else "Nothing was written"
    return (
        f"{url} cannot be fetched: {shorten(reason)}. Is there a network? {state}; "
        "run the same command again to go on. `SCALE=mini` needs no download."
    )
