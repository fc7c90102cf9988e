"""`fgrlhf data model`: fetch a small model, convert one to safetensors, or merge an adapter."""

from pathlib import Path

from pydantic import Field

from fgrlhf.base.errors import UserError, shorten, suggestion
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.models.model_files import ADAPTER_CONFIG, GGUF_SUFFIX


class ModelSettings(StrictModel):
    output_dir: FilePath | None = Field(
        default=None, description="folder of the model; null: outputs/models/NAME"
    )
    base: str | None = Field(
        default=None,
        description="folder or hub name of the model of an adapter or GGUF file; null: the one that"
        " the adapter names, or config and tokenizer of the GGUF file",
    )


def fetch(name: str, settings: ModelSettings) -> None:
    """Fetch a pretrained model, or reuse the folder that has it.

    A name with a slash is a hub name or a folder, whose pickled weights are converted, or whose
    adapter is merged with its model. A GGUF file is a path or `hub:OWNER/NAME/FILE.gguf`.
    """
    if name.endswith(GGUF_SUFFIX):
        from fgrlhf.data.gguf_model import convert_gguf

        output_dir = settings.output_dir or f"outputs/models/{Path(name).stem}"
        convert_gguf(name, output_dir, settings.base)
        return
    from fgrlhf.data.model import MODELS, fetch_model  # takes seconds, and the rows do not need it

    output_dir = settings.output_dir or f"outputs/models/{Path(name).name}"
    if (Path(name) / ADAPTER_CONFIG).is_file():
        from fgrlhf.data.merge_adapter import merge_adapter

        merge_adapter(name, output_dir, settings.base)
        return
    if settings.base is not None:
        raise UserError(
            f"base names the model of an adapter or a GGUF file, but `{shorten(name)}` is neither"
            f" (no {ADAPTER_CONFIG}): leave base out, or check the folder"
        )
    if "/" in name:
        from fgrlhf.data.convert_model import convert_model

        convert_model(name, output_dir)
        return
    if name not in MODELS:
        raise UserError(
            f"`{shorten(name)}` is not a model of fgrlhf data model; {suggestion(name, [*MODELS])}."
            " A stage reads any other model by its hub name or folder. If its weights are pickled"
            " (pytorch_model.bin), convert them once with `fgrlhf data model OWNER/NAME`, or"
            " ./FOLDER. A GGUF file is named by its path"
        )
    model = MODELS[name]
    fetch_model(model, settings.output_dir or model.default_folder)
