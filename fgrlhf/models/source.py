"""Where the weights of a model folder come from: `model_source.json`.

`fgrlhf data model` writes the file, and every folder of a model that was trained from there carries
it along. run.json and the report show it, so that results of de-quantised weights are not mistaken
for those of the published weights.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import read_json, write_json

SOURCE_FILE = "model_source.json"


@dataclass(frozen=True)
class ModelSource:
    """The pretrained model from which a folder's weights come.

    Attributes:
      model: its name on the hub.
      source: where its weights were downloaded.
    """

    model: str
    source: str

    def __str__(self) -> str:
        return f"{self.model} ({self.source})"

    def save(self, folder: str | Path) -> None:
        write_json(Path(folder) / SOURCE_FILE, asdict(self))


def read_source(ckpt: str | Path) -> ModelSource | None:
    """The source of a model folder; None if it has no such file, or one of another program.

    The file is only a remark about the weights, so a damaged one is ignored.
    """
    try:
        path = Path(ckpt) / SOURCE_FILE
        values = read_json(path) if path.is_file() else None
    except (UserError, OSError, ValueError):  # ValueError: a path with a NUL
        return None
    if not isinstance(values, dict):
        return None
    model, source = values.get("model"), values.get("source")
    if not isinstance(model, str) or not isinstance(source, str):
        return None
    return ModelSource(shorten(model), shorten(source))


def sources_in(settings: Any) -> dict[str, str]:
    """The sources of all model folders that a config names: folder -> description."""
    sources = {}
    for text in _texts(settings):
        source = read_source(text)
        if source is not None:
            sources[text] = str(source)
    return sources


def _texts(tree: Any) -> Iterator[str]:
    """All strings of nested dicts and lists, without the keys."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _texts(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _texts(value)
