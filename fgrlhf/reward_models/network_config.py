"""What the config of a checkpoint says of a reward model: its shape, and the config of ours.

Importing this module lets transformers read that config. Whoever loads language models imports it
too, to say of a reward model that it is none.
"""

from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
)

from fgrlhf.reward_models.spec import Kind, Shape


def shape_of_config(config: PretrainedConfig) -> Shape:
    """The shape that a checkpoint's config implies."""
    if config.is_encoder_decoder:
        return "seq2seq"
    kind = type(config)
    # BERT and similar models have a causal variant too, which `is_decoder` switches on
    only_causal = kind in MODEL_FOR_CAUSAL_LM_MAPPING and kind not in MODEL_FOR_MASKED_LM_MAPPING
    if getattr(config, "is_decoder", False) or only_causal:
        return "causal"
    return "encoder"


class LanguageModelScorerConfig(PretrainedConfig):
    """Config of a `LanguageModelScorer`.

    Args:
      trunk: the language model's config as a dict. Its `dtype` is removed: it is the precision of
        the checkpoint from which training started, and a trunk built in bf16 would round the fp32
        weights that are loaded into it.
      kind: "segment" for labels at every position, "sequence" for one score.
      lm_logprob_feature: whether a frozen copy of the language model adds its log-probabilities.
      trained_layers: number of the top layers of the trunk that are trained; None: all of them.
      layers: the trunk has the lowest layers of the language model, this many; None: all of them.
      text_features: whether a linear model of hand-made features is added to the head
        (feature_head.py).
      members: heads on the one trunk, which judge as an ensemble.
      feature_layer: the layer to whose input they are added; 0: to the embeddings. If only the top
        layers are trained, it is the lowest of these.
    """

    model_type = "fgrlhf_language_model_scorer"

    def __init__(
        self,
        trunk: dict | None = None,
        kind: Kind = "segment",
        lm_logprob_feature: bool = False,
        feature_layer: int = 0,
        trained_layers: int | None = None,
        layers: int | None = None,
        text_features: bool = False,
        members: int = 1,
        **kwargs,
    ):
        self.trunk = None if trunk is None else _without_dtype(trunk)
        self.kind = kind
        self.lm_logprob_feature = lm_logprob_feature
        self.feature_layer = feature_layer
        self.trained_layers = trained_layers
        self.layers = layers
        self.text_features = text_features
        self.members = members
        super().__init__(**kwargs)

    def lm_config(self) -> PretrainedConfig:
        """The config of the whole language model."""
        settings = dict(self.trunk or {})
        return AutoConfig.for_model(settings.pop("model_type"), **settings)

    def trunk_config(self) -> PretrainedConfig:
        config = self.lm_config()
        return config if self.layers is None else with_layers(config, self.layers)


def with_layers(config: PretrainedConfig, layers: int) -> PretrainedConfig:
    """The config of a decoder-only model's lowest layers. It is changed in place.

    Raises:
      ValueError: the model is not decoder-only, or has fewer layers.
    """
    if config.is_encoder_decoder:
        raise ValueError("model.layers needs a decoder-only model: leave it out")
    if layers > config.num_hidden_layers:
        raise ValueError(
            f"model.layers={layers}, but it has only {config.num_hidden_layers} layers: set it to"
            f" {config.num_hidden_layers} or less"
        )
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    return config


def _without_dtype(config: dict) -> dict:
    """A config's dict, including nested ones, without dtype and names of code."""
    excluded = ("dtype", "torch_dtype", "auto_map")
    result = {}
    for key, value in config.items():
        if key not in excluded:
            result[key] = _without_dtype(value) if isinstance(value, dict) else value
    return result


# without this, AutoTokenizer warns of an unknown model type
AutoConfig.register(LanguageModelScorerConfig.model_type, LanguageModelScorerConfig)
