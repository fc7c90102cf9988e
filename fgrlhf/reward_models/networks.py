"""The network of reward models based on a language model (shapes `seq2seq` and `causal`).

Reward models of shape `encoder` are transformers' own token and sequence classifiers.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.utils.generic import ModelOutput

from fgrlhf.base.errors import shorten
from fgrlhf.kernels.install import share_cache, share_prompts, shares_prompts, speed_up
from fgrlhf.models.encoder_decoder import CONFIG_KEY, can_pack
from fgrlhf.models.loading import (
    load_config,
    load_weights,
    name_decoder_start,
    width_of_states,
)
from fgrlhf.models.logprobs import logprobs_and_margins, project_states
from fgrlhf.models.shared_rows import can_share
from fgrlhf.models.top_layers import TopLayers, layers_of, names_below, train_top_layers
from fgrlhf.models.trunk import freeze_other_inputs, text_config, trunk_of
from fgrlhf.reward_models.feature_head import FeatureHead, LinearModel, pooled_by_segment
from fgrlhf.reward_models.network_config import LanguageModelScorerConfig, with_layers
from fgrlhf.reward_models.precision import with_exact_heads
from fgrlhf.reward_models.scorer_batch import (
    ScorerBatch,
    hidden_states,
    lower_states,
    scorer_batch,
    upper_states,
)
from fgrlhf.reward_models.shapes import (
    CHANGE_BY_PADDING,
    check_direction,
    check_padding,
    check_stacks,
)
from fgrlhf.reward_models.spec import Kind, Shape
from fgrlhf.reward_models.text_features import TEXT_FEATURES

LM_FEATURES = 2
HEAD_STD = 0.02  # of new weights
LINEAR_INPUTS = ("text_features", "segments")  # tensors of a batch for the feature head alone
_FEATURE_FLOOR = -10.0  # nats


def scaled_features(logprobs_N: Tensor, margins_N: Tensor) -> Tensor:
    """Two features of every token under a language model, features_NF with F = 2.

        log p(a_t)    and    log p(a_t) - max_v log p(v)

    Values are clipped at -10 nats and divided by 10, so that they lie in [-1, 0].
    """
    features_NF = torch.stack([logprobs_N, margins_N], -1)
    return features_NF.clamp(min=_FEATURE_FLOOR) / -_FEATURE_FLOOR


def pooled_features(features_BTF: Tensor, mask_BT: Tensor) -> Tensor:
    """(B, 2F), in nats: the lowest and the mean feature of each response's tokens."""
    # zeros on padding are never the lowest, since no feature is above 0
    nats_BTF = features_BTF * mask_BT[..., None] * -_FEATURE_FLOOR
    mean_BF = nats_BTF.sum(1) / mask_BT.sum(1, keepdim=True)
    return torch.cat([nats_BTF.amin(1), mean_BF], -1)


@dataclass
class ScorerOutput(ModelOutput):
    """What a scorer computes of B responses, with T outputs of C labels, or one score, each.

    Attributes:
      logits: (B, T, C), or scores (B, 1). Of M members: the logarithm of their mean probabilities,
        or their mean score.
      member_logits: of each member, (B, T, M, C) or (B, M); None of a scorer with one head.
    """

    logits: Tensor | None = None
    member_logits: Tensor | None = None


def of_labels(logits_BTK: Tensor, members: int) -> ScorerOutput:
    """The output of heads that label segments. K = M C: the labels of each member in turn."""
    if members == 1:
        return ScorerOutput(logits_BTK)
    logits_BTMC = logits_BTK.unflatten(-1, (members, -1))
    logprobs_BTMC = logits_BTMC.float().log_softmax(-1)
    return ScorerOutput(logprobs_BTMC.logsumexp(-2) - math.log(members), logits_BTMC)


def of_scores(scores_BM: Tensor) -> ScorerOutput:
    """The output of heads that score responses."""
    if scores_BM.shape[1] == 1:
        return ScorerOutput(scores_BM)
    return ScorerOutput(scores_BM.mean(1, keepdim=True), scores_BM)


class LanguageModelScorer(PreTrainedModel):
    """A language model's trunk with a linear head on its last hidden states.

    With M `members` there are M heads, whose outputs follow each other in `head`.

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
    feature_head: FeatureHead | None  # None without text features
    # without it, transformers' Trainer passes more than the batch to a `forward(**arguments)`
    accepts_loss_kwargs = False

    def __init__(self, config: LanguageModelScorerConfig):
        super().__init__(config)
        trunk_config = config.trunk_config()
        self.is_encoder_decoder = trunk_config.is_encoder_decoder
        self.trunk = AutoModel.from_config(trunk_config, trust_remote_code=False)
        self.lm = None
        self.feature_in = None
        hidden_size = width_of_states(trunk_config)
        if config.lm_logprob_feature:
            # a config of its own: `share_prompts` changes the attention of one model at a time
            lm_config = config.lm_config()
            self.lm = _lm_class(lm_config).from_config(lm_config, trust_remote_code=False)
            self.feature_in = nn.Linear(LM_FEATURES, hidden_size, bias=False)
        if config.kind == "segment":
            self.head = nn.Linear(hidden_size, config.members * (config.num_labels or 0))
        else:
            # the lowest and the mean feature of a response: `pooled_features`
            n_pooled = 2 * LM_FEATURES if config.lm_logprob_feature else 0
            # only differences of scores are trained, so a bias would learn nothing
            self.head = nn.Linear(hidden_size + n_pooled, config.members, bias=False)
        self.feature_head = None
        if config.text_features:
            # the lowest, mean and summed features of a segment: `pooled_by_segment`
            n_pooled = 3 * LM_FEATURES if config.lm_logprob_feature else 0
            self.feature_head = FeatureHead(len(TEXT_FEATURES) + n_pooled, self.head.out_features)
        self.post_init()

    @classmethod
    def start_from(
        cls,
        ckpt: str,
        shape: Shape,
        kind: Kind,
        id2label: dict[int, str] | None = None,
        lm_logprob_feature: bool = False,
        layers: int | None = None,
        text_features: bool = False,
        members: int = 1,
    ) -> "LanguageModelScorer":
        """A scorer whose trunk (and frozen language model) have the weights of `ckpt`.

        Its head is random; with `text_features` it is 0 (`start_as`).

        Raises:
          ValueError: the checkpoint is not of that shape, or cannot be read.
        """
        whole_config = load_config(ckpt)
        check_stacks(whole_config, shape)
        trunk_config = whole_config.get_text_config() if shape == "causal" else whole_config
        if shape == "seq2seq":
            name_decoder_start(ckpt, trunk_config)
            if trunk_config.decoder_start_token_id is None:
                raise ValueError(
                    "neither its config nor its generation config has a decoder_start_token_id, the"
                    " token that a decoder starts with, or a bos_token_id in its place: add it to"
                    " config.json"
                )
        if lm_logprob_feature:
            _check_feature(trunk_config)
            if trunk_config is not whole_config:
                raise ValueError(
                    f"it has several parts ({whole_config.model_type}), and log-probabilities need"
                    " one that only reads text: set model.lm_logprob_feature=false"
                )
        labels = {}
        if id2label is not None:
            labels["id2label"] = id2label
            labels["label2id"] = {name: i for i, name in id2label.items()}
        config = LanguageModelScorerConfig(
            trunk_config.to_dict(),
            kind,
            lm_logprob_feature,
            layers=layers,
            text_features=text_features,
            members=members,
            **labels,
        )
        with torch.device("meta"):  # trunk and language model get their weights below
            model = cls(config)
        model.trunk = _load_trunk(ckpt, config, whole_config)
        check_direction(model.trunk, shape)
        check_padding(model.trunk)
        _initialise(model.head, HEAD_STD)
        if model.feature_in is not None:
            model.lm = load_weights(_lm_class(trunk_config), ckpt, dtype=torch.float32)
            model.check_lm_logits()
            # on the scale of token embeddings, so that the first layers do not ignore it
            embeddings = model.trunk.get_input_embeddings().weight.detach()
            _initialise(model.feature_in, float(embeddings.std()))
        if model.feature_head is not None:
            model.feature_head = FeatureHead(
                model.feature_head.linear.in_features, model.head.out_features
            )
            model.start_as(None)
        model.freeze_lm()
        return model

    @torch.no_grad()
    def start_as(self, model: LinearModel | None) -> None:
        """Let every member compute what a linear model of its features does; None: 0."""
        assert self.feature_head is not None  # it has `text_features`
        nn.init.zeros_(self.head.weight)
        if self.head.bias is not None:
            nn.init.zeros_(self.head.bias)
        if model is None:
            nn.init.zeros_(self.feature_head.linear.weight)
            nn.init.zeros_(self.feature_head.linear.bias)
        else:
            self.feature_head.start_as(model.repeated(self.config.members))

    def freeze_lm(self) -> None:
        """Exclude the language model of the feature from training."""
        if self.lm is not None:
            self.lm.requires_grad_(False).eval()

    @torch.no_grad()
    def check_lm_logits(self) -> None:
        """Check the logits of the feature against the language model's own.

        Raises:
          ValueError: the language model changes its logits in a way that `project_states` does not
            know, so log-probabilities would be wrong.
        """
        if self.lm is None:
            return
        ids_12 = torch.tensor([[0, 1]], device=self.device)
        ones_12 = torch.ones_like(ids_12)
        inputs = {"input_ids": ids_12, "attention_mask": ones_12}
        rows = {"places": ids_12, "response_mask": ones_12}  # the two tokens are at places 0 and 1
        if self.is_encoder_decoder:
            inputs["decoder_input_ids"] = ids_12
            rows["prompt_rows"] = torch.zeros(1, dtype=torch.long, device=self.device)
        self.lm.eval()
        # the mask says that no token is padding, which T5Gemma would recognise by its number
        mask = {"decoder_attention_mask": ones_12} if self.is_encoder_decoder else {}
        expected_12V = self.lm(**inputs, **mask, use_cache=False).logits.float()
        hidden_12D = hidden_states(self.lm, scorer_batch(**inputs, **rows, **mask))
        logits_12V = project_states(self.lm, hidden_12D).float()
        tolerance = 1e-3 * float(expected_12V.abs().max())
        if not torch.allclose(logits_12V, expected_12V, rtol=0, atol=tolerance):
            raise ValueError(
                f"{type(self.lm).__name__} changes its logits after the output layer, so the"
                " log-probabilities of model.lm_logprob_feature would be wrong: set it to false, or"
                " add the change to `project_states` (fgrlhf/models/logprobs.py)."
            )

    def train(self, mode: bool = True):
        super().train(mode)
        if self.lm is not None:
            self.lm.eval()  # dropout would change its features from step to step
        return self

    @property
    def shared_width(self) -> int | None:
        """Width of the network if its rows can hold several responses to a prompt, else None."""
        can = can_pack if self.is_encoder_decoder else can_share
        return text_config(self.trunk).hidden_size if can(self.trunk) else None

    def forward(
        self,
        features: Tensor | None = None,
        text_features: Tensor | None = None,
        segments: Tensor | None = None,
        **rows: Tensor,
    ) -> ScorerOutput:
        """Logits (B, T, C) of the responses' tokens, or scores (B, 1).

        The arguments are the output of `RMCollator`; `rows` are those of `scorer_batch`. Missing
        `features` (B, T, F) and `lower` (R, L, D) are computed if the network reads them.

        Raises:
          ValueError: the network has `text_features`, and the batch does not.
        """
        batch = scorer_batch(**rows)
        if self.has_frozen_layers and batch.lower_RLD is None:
            batch = replace(batch, lower_RLD=self.lower_states(batch))
        features_BTF = features
        added_RLD = None
        if self.feature_in is not None:
            if features_BTF is None:
                features_BTF = self.features(batch)
            features_RLF = batch.into_rows(features_BTF.to(self.feature_in.weight.dtype))
            added_RLD = self.feature_in(features_RLF)
        hidden_BTD = batch.of_responses(self._hidden(batch, added_RLD))
        linear_BTK = None
        if self.feature_head is not None:
            if text_features is None or segments is None:
                raise ValueError("the network reads text features, but the batch has none")
            inputs_BTF = self.linear_inputs(text_features, segments, features_BTF)
            linear_BTK = self.feature_head(inputs_BTF)

        if self.config.kind == "segment":
            logits_BTK = self.head(hidden_BTD)
            if linear_BTK is not None:
                logits_BTK = logits_BTK + linear_BTK
            return of_labels(logits_BTK, self.config.members)

        last_BD = batch.at_last_tokens(hidden_BTD)
        if features_BTF is not None and self.feature_in is not None:
            pooled_BF = pooled_features(features_BTF, batch.response_mask_BT)
            last_BD = torch.cat([last_BD.float(), pooled_BF], -1)
        scores_BM = self.head(last_BD)
        if linear_BTK is not None:
            scores_BM = scores_BM + batch.at_last_tokens(linear_BTK)
        return of_scores(scores_BM)

    @property
    def heads(self) -> list[nn.Module]:
        """What reads the trunk's last states; see precision.py."""
        return [self.head] if self.feature_head is None else [self.head, self.feature_head]

    def linear_inputs(
        self, text_features_BTF: Tensor, segments_BT: Tensor, features_BTF: Tensor | None
    ) -> Tensor:
        """What `feature_head` reads of each output, (B, T, F)."""
        if features_BTF is None:
            return text_features_BTF
        pooled_BTF = pooled_by_segment(features_BTF, segments_BT)
        return torch.cat([text_features_BTF, pooled_BTF.to(text_features_BTF.dtype)], -1)

    @property
    def has_frozen_layers(self) -> bool:
        """Whether the trunk is decoder-only and its lower layers are frozen."""
        return self.config.trained_layers is not None and not self.is_encoder_decoder

    @property
    def _n_trained(self) -> int:
        """The number of trained layers of a trunk that `has_frozen_layers`."""
        return self.config.trained_layers or 0

    def lower_states(self, batch: ScorerBatch) -> Tensor:
        """lower_RLD: what the frozen layers compute of the rows."""
        return lower_states(self.trunk, self._n_trained, batch)

    def _hidden(self, batch: ScorerBatch, added_RLD: Tensor | None) -> Tensor:
        """hidden_RLD of the trunk, with `added_RLD` added to the input of `feature_layer`."""
        if batch.lower_RLD is not None:
            lower_RLD = batch.lower_RLD
            if added_RLD is not None:
                lower_RLD = lower_RLD + added_RLD
            return upper_states(self.trunk, self._n_trained, batch, lower_RLD)
        embeddings_RLD = self._reading_stack().get_input_embeddings()(batch.ids_RL)
        if added_RLD is None:
            return hidden_states(self.trunk, batch, embeddings_RLD)
        layer_number = self.config.feature_layer
        if layer_number == 0:
            return hidden_states(self.trunk, batch, embeddings_RLD + added_RLD)

        def add(_, arguments, keywords):
            if arguments:
                return (arguments[0] + added_RLD, *arguments[1:]), keywords
            return (), {**keywords, "hidden_states": keywords["hidden_states"] + added_RLD}

        layer = self._reading_layers()[layer_number]
        hook = layer.register_forward_pre_hook(add, with_kwargs=True)
        try:
            return hidden_states(self.trunk, batch, embeddings_RLD)
        finally:
            hook.remove()

    def _reading_stack(self) -> Any:
        """The part of the trunk that reads responses. Its embeddings may differ (Marian)."""
        return self.trunk.get_decoder() if self.is_encoder_decoder else self.trunk

    def _reading_layers(self) -> nn.ModuleList:
        return layers_of(self._reading_stack())

    def train_top_layers(self, n: int, key: str) -> TopLayers:
        """Freeze all but the head and the top n layers; see models/top_layers.py.

        Features enter at the lowest trained layer, so no gradient flows through those below it.

        Raises:
          UserError: the trunk has fewer than n layers.
        """
        result = train_top_layers(self.trunk, n, key)
        if n < result.total:
            self.config.trained_layers = n
        if self.feature_in is not None:
            self.config.feature_layer = max(len(self._reading_layers()) - n, 0)
        return result

    @torch.no_grad()
    def features(self, batch: ScorerBatch) -> Tensor:
        """features_BTF of the responses' tokens under the frozen language model.

        The first token of each response, and padding, have zeros. Logits are computed for the
        tokens of the responses only, block by block.
        """
        hidden_BTD = batch.of_responses(self._lm_states(batch))
        ids_BT = batch.of_responses(batch.ids_RL)
        predicted_BT = batch.response_mask_BT.clone().bool()
        predicted_BT[:, 0] = False
        before_BTD = hidden_BTD.roll(1, 1)  # token t is predicted from the state of token t - 1
        logprobs_N, margins_N = logprobs_and_margins(
            lambda hidden: project_states(self.lm, hidden),
            before_BTD[predicted_BT],
            ids_BT[predicted_BT],
        )
        features_BTF = hidden_BTD.new_zeros(*ids_BT.shape, LM_FEATURES, dtype=torch.float32)
        features_BTF[predicted_BT] = scaled_features(logprobs_N, margins_N)
        return features_BTF

    def _lm_states(self, batch: ScorerBatch) -> Tensor:
        """hidden_RLD of the frozen language model, from `lower_RLD` where that is known."""
        if batch.lower_RLD is None or not self._lm_has_same_lower_layers:
            return hidden_states(self.lm, batch)
        n_frozen = len(self._reading_layers()) - self._n_trained
        n_upper = len(layers_of(self.lm.base_model)) - n_frozen
        return upper_states(self.lm, n_upper, batch, batch.lower_RLD)

    @cached_property
    def _lm_has_same_lower_layers(self) -> bool:
        """Whether the frozen layers of the trunk are those of the language model.

        They are in every folder that training wrote, because both started as the same checkpoint.
        """
        of_trunk = dict(self.trunk.named_parameters())
        of_lm = dict(self.lm.base_model.named_parameters())
        names = names_below(self.trunk, self._n_trained)
        return all(torch.equal(of_trunk[name], of_lm[name]) for name in names)


def _load_trunk(
    ckpt: str, config: LanguageModelScorerConfig, whole_config: PretrainedConfig
) -> PreTrainedModel:
    """The trunk of a checkpoint; of a model with several parts, the one that reads text.

    Raises:
      ValueError: it cannot be read, or has no such part.
    """
    of_text = whole_config.get_text_config()
    if of_text is whole_config or whole_config.is_encoder_decoder:
        trunk = load_weights(AutoModel, ckpt, config=config.trunk_config(), dtype=torch.float32)
        freeze_other_inputs(trunk)
        return trunk
    if config.layers is not None:
        with_layers(of_text, config.layers)
    whole = load_weights(AutoModel, ckpt, config=whole_config, dtype=torch.float32)
    trunk = trunk_of(whole)
    if trunk is whole or not isinstance(trunk, PreTrainedModel):
        raise ValueError(
            f"its parts ({whole_config.model_type}) cannot be told apart: use a checkpoint with"
            " text only"
        )
    return trunk


def _lm_class(config: PretrainedConfig):
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def _check_feature(config: PretrainedConfig) -> None:
    """Raise `ValueError` if a language model cannot have the feature of log-probabilities."""
    width = width_of_states(config)
    of_layers = config.get_text_config().hidden_size
    if width != of_layers:
        raise ValueError(
            f"its embeddings have {width} numbers and its layers {of_layers}, so"
            " log-probabilities cannot be added to both: set model.lm_logprob_feature=false."
        )
    prefix = getattr(config, CONFIG_KEY, None)
    if prefix:
        raise ValueError(
            f"its decoder reads the prefix {shorten(repr(prefix), 40)} before a response, which"
            " a reward model does not, so the log-probabilities would be wrong: set"
            " model.lm_logprob_feature=false."
        )


def _initialise(layer: nn.Linear, std: float) -> None:
    """Give a layer of the meta device random weights and a bias of 0."""
    layer.to_empty(device="cpu")
    nn.init.normal_(layer.weight, std=std)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


NetworkT = TypeVar("NetworkT", bound=PreTrainedModel)


def speed_up_network(network: NetworkT, setting: str = "auto") -> NetworkT:
    """`kernels.install.speed_up`, shared prompts in a `LanguageModelScorer`, and exact heads."""
    with_exact_heads(network)
    if isinstance(network, LanguageModelScorer):
        for model in (network.trunk, network.lm):
            if model is None:
                continue
            if network.is_encoder_decoder:
                share_prompts(model, setting)
                if shares_prompts(model) and not _shares_rightly(model):
                    model.set_attn_implementation("sdpa")
            elif can_share(model) and model._supports_attention_backend:
                share_cache(model, setting)
    return speed_up(network, setting)


@torch.no_grad()
def _shares_rightly(model: PreTrainedModel) -> bool:
    """Whether two rows that share their prompt's encoder states have the states of each alone.

    They have not where self- and cross-attention are one (T5Gemma 2).
    """
    training = model.training
    model.eval()

    def states(rows: list[int]) -> Tensor:
        ids_RL = torch.tensor([[1, 2], [2, 1]], device=model.device)[rows]
        prompt_1P = torch.tensor([[1, 2, 1]], device=model.device)
        batch = scorer_batch(
            prompt_1P,
            torch.ones_like(prompt_1P),
            places=ids_RL,
            response_mask=torch.ones_like(ids_RL),
            decoder_input_ids=ids_RL,
            decoder_attention_mask=torch.ones_like(ids_RL),
            prompt_rows=torch.zeros(len(rows), dtype=torch.long, device=model.device),
        )
        return hidden_states(model, batch).float()

    try:
        alone = torch.cat([states([0]), states([1])])
        difference = (states([0, 1]) - alone).abs().max()
        return bool(difference <= CHANGE_BY_PADDING * alone.abs().max())
    except Exception:  # the code of a network's forward pass can raise anything
        return False
    finally:
        model.train(training)
