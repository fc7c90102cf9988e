"""`fgrlhf data model`: fetch a small pretrained language model."""

from pydantic import Field

from fgrlhf.config import StrictModel
from fgrlhf.errors import UserError, shorten, suggestion


class ModelSettings(StrictModel):
    output_dir: str | None = Field(
        default=None, description="folder of the model; null: outputs/models/NAME"
    )


def fetch(name: str, settings: ModelSettings) -> None:
    """Fetch a pretrained model, or reuse the folder that has it."""
    from fgrlhf.data.model import MODELS, fetch_model  # takes seconds, and the rows do not need it

    if name not in MODELS:
        raise UserError(
            f"`{shorten(name)}` is not a model of fgrlhf data model; {suggestion(name, [*MODELS])}."
            " A stage reads any other model by its hub name or folder"
        )
    model = MODELS[name]
    fetch_model(model, settings.output_dir or model.default_folder)
