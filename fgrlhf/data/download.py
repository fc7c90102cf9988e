"""Downloads published files, verifies them, and resumes after interruptions.

A file is first written to <name>.part and renamed once its contents are verified: by its git blob
id, which covers size and contents, or by the SHA-256 that the Hugging Face hub lists. A wrong,
changed or incomplete file is never accepted.
"""

import hashlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_download
from pydantic import Field, field_validator
from tqdm import tqdm

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import sha256
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.runs.progress import progress_bar

BLOCK = 1 << 16


class DownloadConfig(StrictModel):
    """Settings of a task's download program, which sets the default of `base_url`."""

    data_dir: FilePath = Field(description="folder of the rows")
    base_url: str = Field(description="address of the folder with the files")
    attempts: int = Field(default=4, ge=1, le=100, description="most attempts for each file")
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
    """Why `url` is not a valid web address; None if it is valid."""
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # raises an error if the port is not a number
    except ValueError as error:
        return str(error)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "it must begin with http:// or https:// and a host"
    if not url.isascii() or any(character.isspace() for character in url):
        return "write white space and letters like é as %20, %C3%A9"
    return None


def blob_id(path: str | Path) -> str:
    """The git blob id of a file: SHA-1 of "blob <size>\\0" and the contents."""
    path = Path(path)
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode())
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _blob_id_or_none(path: Path) -> str | None:
    """None if the path is not a readable file: a folder, a dangling link, another user's file."""
    try:
        return blob_id(path)
    except OSError:
        return None


def download(config: DownloadConfig, blob_ids: Mapping[str, str]) -> list[Path]:
    """Fetch the files that are missing; return their paths.

    Args:
      blob_ids: name of each file -> its git blob id.

    Raises:
      UserError: another file has the same name (then nothing is fetched), the folder cannot be
        written, the server cannot be reached or lacks the file, or the file it sends is not the
        published one. The part of a file that was received stays in its .part file.
    """
    folder = Path(config.data_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the folder {folder} cannot be created: {error.strerror}. Choose another: DATA_DIR=..."
        ) from None
    blob_of_path = {folder / name: blob for name, blob in blob_ids.items()}
    present = [path for path in blob_of_path if os.path.lexists(path)]
    others = [str(path) for path in present if _blob_id_or_none(path) != blob_of_path[path]]
    if others:
        raise UserError(
            f"{', '.join(others)}: exists already and is not the published file. Move it away to"
            " fetch the published one, or choose another folder: DATA_DIR=..."
        )
    for path in present:
        print(f"{path}: already there, verified")
    missing = [path for path in blob_of_path if path not in present]
    for path in missing:
        _fetch(config, path, blob_of_path[path])
        print(f"{path}: fetched, verified")
    return missing


def fetch_from_hub(repository: str, name: str, path: Path) -> Path:
    """Fetch a file of a data set from the Hugging Face hub to `path`.

    An interrupted download is continued. A file that is already there is kept: its rows are checked
    when they are read.

    Args:
      repository: of the data set.
      name: of the file in the repository.

    Raises:
      UserError: the hub cannot be reached, or sends another file than it lists.
    """
    if path.exists():
        print(f"{path}: already there")
        return path
    received_in = path.parent / "hub.part"
    try:
        (listed,) = HfApi().get_paths_info(repository, [name], repo_type="dataset")
        partial = hf_hub_download(repository, name, repo_type="dataset", local_dir=received_in)
    except Exception as error:  # the hub's client raises many kinds
        raise UserError(
            f"{name} cannot be fetched from hub:{repository}: {shorten(error)}. Is there a"
            f" network? Run the same command again, or put the file at {path}"
        ) from None
    stored = getattr(listed, "lfs", None)  # None for a small file, which the hub keeps in git
    if stored is None:
        kind, received, expected = "git blob id", blob_id(partial), getattr(listed, "blob_id", None)
    else:
        kind, received, expected = "SHA-256", sha256(partial), stored.sha256
    if received != expected:
        Path(partial).unlink()
        raise UserError(
            f"hub:{repository} sent a {name} with {kind} {received}, but lists {expected}. It was"
            " not kept; run the same command again"
        )
    Path(partial).replace(path)
    shutil.rmtree(received_in)
    print(f"{path}: fetched, verified")
    return path


def _fetch(config: DownloadConfig, path: Path, blob: str) -> None:
    """Receive into <path>.part, continuing an earlier attempt, then verify and rename."""
    part = path.with_name(path.name + ".part")
    url = f"{config.base_url.rstrip('/')}/{path.name}"
    for attempt in range(config.attempts):
        continued = _size(part) > 0
        try:
            _receive(url, part, config.timeout)
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            # UnicodeError: the host name is invalid
            if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429:
                raise UserError(
                    f"{url}: the server answers {error.code} {shorten(error.reason)}. Give another"
                    " address with base_url=...; the contents are verified in any case"
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
        f"{url}: the continued download did not match the published file. It was not kept; run"
        " this again"
    )


def _receive(url: str, part: Path, timeout: float) -> None:
    """Append the missing bytes to `part`, or start over if the server cannot continue.

    Raises:
      OSError: there was no connection, or it ended too early.
    """
    start = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # no bytes follow: `part` is complete, or wrong; see its blob id
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
                    file.flush()  # so that a full disk raises here, not when the file is closed
                bar.update(len(block))
    if expected is not None and _size(part) < expected:
        raise ConnectionError(f"the connection ended after {_size(part)} of {expected} bytes")


def _continues(response: http.client.HTTPResponse, start: int) -> bool:
    """Whether the server sends the requested bytes, from `start` on."""
    content_range = response.headers.get("Content-Range", "")
    return response.status == 206 and content_range.startswith(f"bytes {start}-")


def _length(response: http.client.HTTPResponse) -> int | None:
    """The number of bytes that the server announces; None if it announces none."""
    length = response.headers.get("Content-Length")
    if length is None or not length.isdecimal() or len(length) >= 16:
        return None
    return int(length)


def _progress(part: Path, start: int, expected: int | None) -> tqdm:
    return progress_bar(expected, part.stem, "B", initial=start, unit_scale=True)


@contextmanager
def _writing(part: Path) -> Iterator[None]:
    """Turn a disk error into a `UserError`, since another attempt would fail too."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{part} cannot be written: {error.strerror}. Make room, remove what is in the way, or"
            " choose another folder (DATA_DIR=...), and run the same command again; it continues"
            " where it stopped"
        ) from None


def _size(part: Path) -> int:
    """Bytes received so far; 0 if there is no such file."""
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
        "run the same command again to continue. `SCALE=mini` needs no download."
    )
