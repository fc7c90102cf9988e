"""Folders with the files of an adapter of peft (`adapter_config.json`), which are not models.

transformers puts the adapter of such a folder on the weights beside it and freezes everything else,
whichever model the adapter was trained for. Where the weights hold the adapter already (what
`merge_and_unload().save_pretrained` into the adapter's folder leaves), it acts twice.
"""

from pathlib import Path

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import read_json

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model"  # .safetensors, or the .bin of earlier releases


def base_of_adapter(folder: Path) -> str | None:
    """The folder or hub name of the model for which an adapter was trained, if it is named."""
    try:
        config = read_json(folder / ADAPTER_CONFIG)
    except (UserError, OSError):
        return None
    name = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    return name if isinstance(name, str) and name else None


def has_weights(folder: Path) -> bool:
    """Whether the folder holds weights of a model besides those of an adapter."""
    for file in folder.iterdir():
        is_weights = file.suffix in (".safetensors", ".bin", ".pt", ".pth")
        is_of_trainer = file.name in ("training_args.bin", "optimizer.pt", "scheduler.pt")
        if is_weights and not is_of_trainer and file.stem != ADAPTER_WEIGHTS:
            return True
    return False


def refuse_adapter(folder: Path) -> None:
    """Raise `UserError` if a folder is an adapter, or holds one beside its weights."""
    if not (folder / ADAPTER_CONFIG).exists():
        return
    base = base_of_adapter(folder)
    of_base = f" of `{shorten(base)}`" if base else ""
    merge = f"`fgrlhf data model {shorten(folder)} output_dir=...`"
    if not has_weights(folder):
        raise UserError(
            f"`{shorten(folder)}` is an adapter{of_base} ({ADAPTER_CONFIG}), not a whole model:"
            f" merge the two once with {merge}, and name the folder that it writes"
        )
    raise UserError(
        f"`{shorten(folder)}` holds weights and an adapter{of_base} ({ADAPTER_CONFIG}), which would"
        " be applied to these weights, even if they contain it already. If they do, remove"
        f" {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}.safetensors; if not, merge them once with"
        f" {merge}, and name the folder that it writes"
    )
