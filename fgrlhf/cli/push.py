"""Upload a policy or reward model to a hub, with its model card.

    fgrlhf push FOLDER ORG/NAME [private=false] [message=TEXT]

The model's files, its card and its figures go there in one commit; checkpoints, samples and logs
of the run stay here. The repository is created if it is missing, and private unless told otherwise.
The token is that of `hf auth login` or of HF_TOKEN.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id
from pydantic import Field

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.secrets import mask_secrets
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import StrictModel
from fgrlhf.models.provenance import CARD_FILE, SOURCE_FILE
from fgrlhf.runs.checkpoint import is_whole_model
from fgrlhf.runs.runlog import BEST_FILE
from fgrlhf.runs.stage import model_files

USAGE = "usage: fgrlhf push FOLDER ORG/NAME [private=false] [message=TEXT]"
ABOUT = (CARD_FILE, SOURCE_FILE, BEST_FILE, "metrics.json", "config.yaml")  # beside the model


class PushSettings(StrictModel):
    """How a folder is uploaded."""

    private: bool = Field(default=True, description="of a repository that is created")
    message: str = Field(default="Upload by fgrlhf", description="of the commit")


def push(folder: Path, name: str, settings: PushSettings) -> str:
    """Upload a model folder in one commit; return the address of the repository.

    Raises:
      UserError: the folder has no whole model, the name is none, or the hub refuses.
    """
    if not is_whole_model(folder):
        others = [path.name for path in (folder / "best", folder / "final") if is_whole_model(path)]
        hint = f" Its folders {' and '.join(others)} have one." if others else ""
        raise UserError(f"{shorten(folder)} is no folder of a whole model.{hint}")
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(f"{shorten(name)} is no name of a repository: {shorten(error)}") from None
    files = [*model_files(folder), *(folder / about for about in ABOUT)]
    names = sorted({path.name for path in files if path.is_file()})
    size = sum((folder / file).stat().st_size for file in names)
    print(f"{name}: {', '.join(names)} ({size / 1e6:.1f} MB)", flush=True)
    if CARD_FILE not in names:
        print(f"note: {folder} has no {CARD_FILE}, so the model has no card", flush=True)
    api = HfApi()
    try:
        address = api.create_repo(name, private=settings.private, exist_ok=True)
        api.upload_folder(
            repo_id=name,
            folder_path=folder,
            allow_patterns=names,
            commit_message=settings.message,
        )
    except OfflineModeIsEnabled:
        raise UserError("HF_HUB_OFFLINE is set, so nothing is uploaded: unset it") from None
    except LocalTokenNotFoundError:
        raise UserError(
            "there is no token for the hub: run `hf auth login`, or set HF_TOKEN to a token with"
            " the right to write"
        ) from None
    except Exception as error:  # the connection and its libraries can raise anything
        reason = shorten(mask_secrets(str(error)))
        raise UserError(
            f"the hub refused {name}: {type(error).__name__}: {reason}. Check the name, and that"
            " the token may write there (`hf auth whoami`)"
        ) from None
    return str(address)


def main(argv: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if argv is None else argv)
    places = [word for word in words if "=" not in word and not word.startswith("-")]
    rest = [word for word in words if word not in places]
    settings = settings_from(PushSettings, rest, USAGE)
    if len(places) != 2:
        raise UserError(f"{USAGE}\nA model's folder and a name on the hub are needed")
    folder, name = places
    print(f"pushed: {push(Path(folder), name, settings)}")
