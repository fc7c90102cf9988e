"""The network of reward models that read with a language model (shapes `seq2seq` and `causal`).

Reward models of shape `encoder` are transformers' own token and sequence classifiers.
"""

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
_FEATURE_FLOOR = -10.0


class LanguageModelScorerConfig(PretrainedConfig):
    """`trunk`: the language model's config as a dict; `kind`: labels at every position, or one
    score.

    The trunk's `dtype` is left out. It is that of the checkpoint the training started from, and a
    trunk built in bf16 would round the fp32 weights that are loaded into it.
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
        self.kind, self.lm_logprob_feature = kind, lm_logprob_feature
        super().__init__(**kwargs)

    def trunk_config(self) -> PretrainedConfig:
        return AutoConfig.for_model(**self.trunk)


def _without_dtype(config: dict) -> dict:
    """A config's dict without the precision of its weights, and without that of its parts. Nor is
    any code named.
    """
    left_out = ("dtype", "torch_dtype", "auto_map")
    return {
        key: _without_dtype(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in left_out
    }


AutoConfig.register(
    LanguageModelScorerConfig.model_type, LanguageModelScorerConfig
)  # else AutoTokenizer warns of an unknown type


def lm_features(logits_BTV: Tensor, ids_BT: Tensor) -> Tensor:
    """features_BTF of every token under a language model: log p(a_t), and how far that is below the
    best token's.

    `logits[:, t]` predict token t + 1. The first token, which nothing predicts, gets zeros. Values
    are cut at -10 and divided by 10, so that they lie in [-1, 0].
    """
    logprobs_BTV = torch.log_softmax(logits_BTV[:, :-1].float(), -1)
    chosen_BT = logprobs_BTV.gather(-1, ids_BT[:, 1:, None])[..., 0]
    features_BTF = torch.stack([chosen_BT, chosen_BT - logprobs_BTV.amax(-1)], -1)
    features_BTF = features_BTF.clamp(min=_FEATURE_FLOOR) / -_FEATURE_FLOOR
    return nn.functional.pad(features_BTF, (0, 0, 1, 0))


def pooled_features(features_BTF: Tensor, mask_BT: Tensor) -> Tensor:
    """(B, 2F), in nats: the lowest and the mean feature of each answer's tokens."""
    features_BTF = (
        features_BTF * mask_BT[..., None] * -_FEATURE_FLOOR
    )  # at most 0, so padding never is the lowest
    return torch.cat([features_BTF.amin(1), features_BTF.sum(1) / mask_BT.sum(1, keepdim=True)], -1)


class LanguageModelScorer(PreTrainedModel):
    """A language model's trunk with a linear head on its last hidden states.

    With `lm_logprob_feature` a frozen copy of the language model says how likely each token of the
    answer is, and that is added to the token's embedding: a small model learns from it which facts
    are wrong. The score of a whole answer reads its lowest and mean log-probability too.
    """

    config_class = LanguageModelScorerConfig
    base_model_prefix = "trunk"
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    def __init__(self, config: LanguageModelScorerConfig):
        super().__init__(config)
        trunk_config = config.trunk_config()
        self.is_encoder_decoder = trunk_config.is_encoder_decoder
        self.trunk = AutoModel.from_config(trunk_config, trust_remote_code=False)
        self.lm = self.feature_in = None
        if config.lm_logprob_feature:
            self.lm = _lm_class(trunk_config).from_config(trunk_config, trust_remote_code=False)
            self.feature_in = nn.Linear(LM_FEATURES, trunk_config.hidden_size, bias=False)
        segments = config.kind == "segment"
        width = trunk_config.hidden_size
        if config.lm_logprob_feature and not segments:
            width += 2 * LM_FEATURES  # of the whole answer, see `pooled_features`
        # a score of whole answers is compared only, so it has no bias to learn
        self.head = nn.Linear(width, config.num_labels if segments else 1, bias=segments)
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
        """A scorer whose trunk (and frozen language model) have the weights of `ckpt`, its head
        random ones.

        Raises:
          ValueError: the checkpoint is not of that shape, or cannot be read.
        """
        trunk_config = load_config(ckpt)
        check_stacks(trunk_config, shape)
        if shape == "seq2seq" and trunk_config.decoder_start_token_id is None:
            raise ValueError(
                "its config names no decoder_start_token_id, the token that a decoder starts with"
            )
        labels = (
            {}
            if id2label is None
            else {"id2label": id2label, "label2id": {name: i for i, name in id2label.items()}}
        )
        config = LanguageModelScorerConfig(
            trunk_config.to_dict(), kind, lm_logprob_feature, **labels
        )
        model = cls(config)
        model.trunk = load_weights(AutoModel, ckpt, dtype=torch.float32)
        check_direction(model.trunk, shape)
        if lm_logprob_feature:
            model.lm = load_weights(_lm_class(trunk_config), ckpt, dtype=torch.float32)
            # as loud as a token's embedding, so that the first layers do not overhear it
            nn.init.normal_(
                model.feature_in.weight,
                std=float(model.trunk.get_input_embeddings().weight.detach().std()),
            )
        model.freeze_lm()
        return model

    def freeze_lm(self) -> None:
        """Only the trunk, the head and the feature's way in are trained."""
        if self.lm is not None:
            self.lm.requires_grad_(False).eval()

    def train(self, mode: bool = True):
        super().train(mode)
        if self.lm is not None:
            self.lm.eval()  # its features must not change from step to step
        return self

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        prompt_rows: Tensor | None = None,
    ) -> TokenClassifierOutput:
        """logits (B, T, labels) at every position of the answer's sequence; (B, 1) of a sequence
        scorer.

        Shapes: seq2seq reads input_ids (prompts, P), decoder_input_ids (B, T) and prompt_rows (B,),
          the
        prompt of each answer; causal reads input_ids (B, T), prompt and answer in one.
        """
        if self.is_encoder_decoder:
            read_BT, mask_BT, prompt_mask_BP = (
                decoder_input_ids,
                decoder_attention_mask,
                attention_mask[prompt_rows],
            )
        else:
            read_BT, mask_BT, prompt_mask_BP = input_ids, attention_mask, None

        def hidden(trunk: nn.Module, embeddings_BTD: Tensor) -> Tensor:
            if not self.is_encoder_decoder:
                return trunk(
                    inputs_embeds=embeddings_BTD, attention_mask=mask_BT, use_cache=False
                ).last_hidden_state
            encoded = trunk.get_encoder()(
                input_ids=input_ids, attention_mask=attention_mask
            ).last_hidden_state[prompt_rows]
            return trunk.get_decoder()(
                inputs_embeds=embeddings_BTD,
                attention_mask=mask_BT,
                encoder_hidden_states=encoded,
                encoder_attention_mask=prompt_mask_BP,
                use_cache=False,
            ).last_hidden_state

        embeddings_BTD = self.trunk.get_input_embeddings()(read_BT)
        if self.lm is not None:
            features_BTF = self._features(input_ids, attention_mask, read_BT, mask_BT, prompt_rows)
            embeddings_BTD = embeddings_BTD + self.feature_in(features_BTF.to(embeddings_BTD.dtype))
        read = hidden(self.trunk, embeddings_BTD)
        if self.config.kind == "sequence":
            read = read[torch.arange(len(read), device=read.device), mask_BT.sum(1) - 1]
            if self.lm is not None:
                read = torch.cat([read, pooled_features(features_BTF, mask_BT).to(read.dtype)], -1)
        return TokenClassifierOutput(logits=self.head(read))

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
            return lm_features(
                self.lm(input_ids=read_BT, attention_mask=mask_BT, use_cache=False).logits, read_BT
            )
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
