"""The network of reward models based on a language model (shapes `seq2seq` and `causal`).

Reward models of shape `encoder` are transformers' own token and sequence classifiers.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import TokenClassifierOutput

from fgrlhf.models.loading import load_config, load_weights
from fgrlhf.reward_models.inputs import Kind, Shape
from fgrlhf.reward_models.shapes import check_direction, check_stacks

LM_FEATURES = 2
_FEATURE_FLOOR = -10.0  # nats


class LanguageModelScorerConfig(PretrainedConfig):
    """Config of a `LanguageModelScorer`.

    Args:
      trunk: the language model's config as a dict. Its `dtype` is removed: it is the precision of
        the checkpoint from which training started, and a trunk built in bf16 would round the fp32
        weights that are loaded into it.
      kind: "segment" for labels at every position, "sequence" for one score.
      lm_logprob_feature: whether a frozen copy of the language model adds its log-probabilities.
    """

    model_type = "fgrlhf_language_model_scorer"

    def __init__(
        self,
        trunk: dict | None = None,
        kind: Kind = "segment",
        lm_logprob_feature: bool = False,
        **kwargs,
    ):
        self.trunk = None if trunk is None else _without_dtype(trunk)
        self.kind = kind
        self.lm_logprob_feature = lm_logprob_feature
        super().__init__(**kwargs)

    def trunk_config(self) -> PretrainedConfig:
        settings = dict(self.trunk or {})
        return AutoConfig.for_model(settings.pop("model_type"), **settings)


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


def lm_features(logits_BTV: Tensor, ids_BT: Tensor) -> Tensor:
    """Two features of every token under a language model, features_BTF with F = 2.

        log p(a_t)    and    log p(a_t) - max_v log p(v)

    `logits_BTV[:, t]` predict token t + 1. The first token, which nothing predicts, gets zeros.
    Values are clipped at -10 nats and divided by 10, so that they lie in [-1, 0].
    """
    logprobs_BTV = torch.log_softmax(logits_BTV[:, :-1].float(), -1)
    chosen_BT = logprobs_BTV.gather(-1, ids_BT[:, 1:, None])[..., 0]
    features_BTF = torch.stack([chosen_BT, chosen_BT - logprobs_BTV.amax(-1)], -1)
    features_BTF = features_BTF.clamp(min=_FEATURE_FLOOR) / -_FEATURE_FLOOR
    return nn.functional.pad(features_BTF, (0, 0, 1, 0))


def pooled_features(features_BTF: Tensor, mask_BT: Tensor) -> Tensor:
    """(B, 2F), in nats: the lowest and the mean feature of each response's tokens."""
    # zeros on padding are never the lowest, since no feature is above 0
    nats_BTF = features_BTF * mask_BT[..., None] * -_FEATURE_FLOOR
    mean_BF = nats_BTF.sum(1) / mask_BT.sum(1, keepdim=True)
    return torch.cat([nats_BTF.amin(1), mean_BF], -1)


class LanguageModelScorer(PreTrainedModel):
    """A language model's trunk with a linear head on its last hidden states.

    With `lm_logprob_feature`, a frozen copy of the language model computes how likely each token of
    the response is, and a projection of that is added to the token's embedding. Small models detect
    wrong facts with it. The score of a whole response reads its lowest and mean log-probability as
    well.
    """

    config_class = LanguageModelScorerConfig
    base_model_prefix = "trunk"
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    trunk: Any
    lm: Any  # None without the feature
    feature_in: nn.Linear | None

    def __init__(self, config: LanguageModelScorerConfig):
        super().__init__(config)
        trunk_config = config.trunk_config()
        self.is_encoder_decoder = trunk_config.is_encoder_decoder
        self.trunk = AutoModel.from_config(trunk_config, trust_remote_code=False)
        self.lm = None
        self.feature_in = None
        hidden_size: int = trunk_config.hidden_size
        if config.lm_logprob_feature:
            self.lm = _lm_class(trunk_config).from_config(trunk_config, trust_remote_code=False)
            self.feature_in = nn.Linear(LM_FEATURES, hidden_size, bias=False)
        if config.kind == "segment":
            self.head = nn.Linear(hidden_size, config.num_labels or 0)
        else:
            pooled = 2 * LM_FEATURES if config.lm_logprob_feature else 0  # see `pooled_features`
            # only differences of scores are trained, so a bias would learn nothing
            self.head = nn.Linear(hidden_size + pooled, 1, bias=False)
        self.post_init()

    @classmethod
    def start_from(
        cls,
        ckpt: str,
        shape: Shape,
        kind: Kind,
        id2label: dict[int, str] | None = None,
        lm_logprob_feature: bool = False,
    ) -> "LanguageModelScorer":
        """A scorer whose trunk (and frozen language model) have the weights of `ckpt`.

        Its head is random.

        Raises:
          ValueError: the checkpoint is not of that shape, or cannot be read.
        """
        trunk_config = load_config(ckpt)
        check_stacks(trunk_config, shape)
        if shape == "seq2seq" and trunk_config.decoder_start_token_id is None:
            raise ValueError(
                "its config has no decoder_start_token_id, the token that a decoder starts with"
            )
        labels = {}
        if id2label is not None:
            labels["id2label"] = id2label
            labels["label2id"] = {name: i for i, name in id2label.items()}
        config = LanguageModelScorerConfig(
            trunk_config.to_dict(), kind, lm_logprob_feature, **labels
        )
        model = cls(config)
        model.trunk = load_weights(AutoModel, ckpt, dtype=torch.float32)
        check_direction(model.trunk, shape)
        if model.feature_in is not None:
            model.lm = load_weights(_lm_class(trunk_config), ckpt, dtype=torch.float32)
            # on the scale of token embeddings, so that the first layers do not ignore it
            embeddings = model.trunk.get_input_embeddings().weight.detach()
            nn.init.normal_(model.feature_in.weight, std=float(embeddings.std()))
        model.freeze_lm()
        return model

    def freeze_lm(self) -> None:
        """Exclude the language model of the feature from training."""
        if self.lm is not None:
            self.lm.requires_grad_(False).eval()

    def train(self, mode: bool = True):
        super().train(mode)
        if self.lm is not None:
            self.lm.eval()  # dropout would change its features from step to step
        return self

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        prompt_rows: Tensor | None = None,
    ) -> TokenClassifierOutput:
        """Logits (B, T, labels) at every position of the response's sequence, or scores (B, 1).

        A causal model reads input_ids (B, T), the prompt followed by the response. An
        encoder-decoder reads input_ids (prompts, P), decoder_input_ids (B, T) and prompt_rows (B,),
        the prompt of each response.
        """
        if self.is_encoder_decoder:
            read_BT, mask_BT = decoder_input_ids, decoder_attention_mask
        else:
            read_BT, mask_BT = input_ids, attention_mask
        assert read_BT is not None and mask_BT is not None

        embeddings_BTD = self.trunk.get_input_embeddings()(read_BT)
        features_BTF = None
        if self.feature_in is not None:
            features_BTF = self._features(input_ids, attention_mask, read_BT, mask_BT, prompt_rows)
            embeddings_BTD = embeddings_BTD + self.feature_in(features_BTF.to(embeddings_BTD.dtype))
        if self.is_encoder_decoder:
            encoder = self.trunk.get_encoder()
            encoded = encoder(input_ids=input_ids, attention_mask=attention_mask)
            hidden_BTD = self.trunk.get_decoder()(
                inputs_embeds=embeddings_BTD,
                attention_mask=mask_BT,
                encoder_hidden_states=encoded.last_hidden_state[prompt_rows],
                encoder_attention_mask=attention_mask[prompt_rows],
                use_cache=False,
            ).last_hidden_state
        else:
            hidden_BTD = self.trunk(
                inputs_embeds=embeddings_BTD, attention_mask=mask_BT, use_cache=False
            ).last_hidden_state
        if self.config.kind == "segment":
            return TokenClassifierOutput(logits=self.head(hidden_BTD))

        rows_B = torch.arange(len(hidden_BTD), device=hidden_BTD.device)
        last_BD = hidden_BTD[rows_B, mask_BT.sum(1) - 1]
        if features_BTF is not None:
            pooled = pooled_features(features_BTF, mask_BT)
            last_BD = torch.cat([last_BD, pooled.to(last_BD.dtype)], -1)
        return TokenClassifierOutput(logits=self.head(last_BD))

    @torch.no_grad()
    def _features(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        read_BT: Tensor,
        mask_BT: Tensor,
        prompt_rows: Tensor | None,
    ) -> Tensor:
        if not self.is_encoder_decoder:
            output = self.lm(input_ids=read_BT, attention_mask=mask_BT, use_cache=False)
            return lm_features(output.logits, read_BT)
        encoded = self.lm.get_encoder()(input_ids=input_ids, attention_mask=attention_mask)
        encoded.last_hidden_state = encoded.last_hidden_state[prompt_rows]
        output = self.lm(
            encoder_outputs=encoded,
            attention_mask=attention_mask[prompt_rows],
            decoder_input_ids=read_BT,
            decoder_attention_mask=mask_BT,
            use_cache=False,
        )
        return lm_features(output.logits, read_BT)


def _lm_class(config: PretrainedConfig):
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
