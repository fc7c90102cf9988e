"""`fgrlhf data model`: fetch a small pretrained language model, or convert one to safetensors."""

from pathlib import Path

from pydantic import Field

from fgrlhf.config import StrictModel
from fgrlhf.errors import UserError, shorten, suggestion


class ModelSettings(StrictModel):
    output_dir: str | None = Field(
        default=None, description="folder of the model; null: outputs/models/NAME"
    )


def fetch(name: str, settings: ModelSettings) -> None:
    """Fetch a pretrained model, or reuse the folder that has it.

    A name with a slash is a hub name or a folder, whose pickled weights are converted.
    """
    from fgrlhf.data.model import MODELS, fetch_model  # takes seconds, and the rows do not need it

    if "/" in name:
        from fgrlhf.data.convert_model import convert_model

        convert_model(name, settings.output_dir or f"outputs/models/{Path(name).name}")
        return
    if name not in MODELS:
        raise UserError(
            f"`{shorten(name)}` is not a model of fgrlhf data model; {suggestion(name, [*MODELS])}."
            " A stage reads any other model by its hub name or folder. If its weights are pickled"
            " (pytorch_model.bin), convert them once with `fgrlhf data model OWNER/NAME`, or"
            " ./FOLDER"
        )
    model = MODELS[name]
    fetch_model(model, settings.output_dir or model.default_folder)
