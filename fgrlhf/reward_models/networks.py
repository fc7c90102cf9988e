"""The network of reward models based on a language model (shapes `seq2seq` and `causal`).

Reward models of shape `encoder` are transformers' own token and sequence classifiers.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import TokenClassifierOutput

from fgrlhf.kernels.install import (
    share_cache,
    share_prompts,
    shares_cache,
    shares_prompts,
    speed_up,
)
from fgrlhf.kernels.shared_rows import RaggedRows
from fgrlhf.models.encoder_decoder import can_pack, encode_prompts
from fgrlhf.models.loading import load_config, load_weights
from fgrlhf.models.logprobs import logprobs_and_margins, project_states
from fgrlhf.models.shared_rows import block_mask, can_share
from fgrlhf.models.top_layers import TopLayers, layers_of, train_top_layers
from fgrlhf.reward_models.feature_head import FeatureHead, LinearModel, pooled_by_segment
from fgrlhf.reward_models.inputs import Kind, RMInput, RMInputs, Shape, batches_by_prompt
from fgrlhf.reward_models.shapes import check_direction, check_stacks
from fgrlhf.reward_models.text_features import TEXT_FEATURES
from fgrlhf.utils import check_same_shape

LM_FEATURES = 2
HEAD_STD = 0.02  # of new weights
FEATURE_TOKENS = 8_192
LINEAR_INPUTS = ("text_features", "segments")  # tensors of a batch for the feature head alone
_FEATURE_FLOOR = -10.0  # nats


class LanguageModelScorerConfig(PretrainedConfig):
    """Config of a `LanguageModelScorer`.

    Args:
      trunk: the language model's config as a dict. Its `dtype` is removed: it is the precision of
        the checkpoint from which training started, and a trunk built in bf16 would round the fp32
        weights that are loaded into it.
      kind: "segment" for labels at every position, "sequence" for one score.
      lm_logprob_feature: whether a frozen copy of the language model adds its log-probabilities.
      layers: the trunk has the lowest layers of the language model, this many; None: all of them.
      text_features: whether a linear model of hand-made features is added to the head
        (feature_head.py).
      feature_layer: the layer to whose input they are added; 0: to the embeddings. If only the top
        layers are trained, it is the lowest of these. None in folders of earlier releases, which
        used the embeddings.
    """

    model_type = "fgrlhf_language_model_scorer"

    def __init__(
        self,
        trunk: dict | None = None,
        kind: Kind = "segment",
        lm_logprob_feature: bool = False,
        feature_layer: int | None = None,
        layers: int | None = None,
        text_features: bool = False,
        **kwargs,
    ):
        self.trunk = None if trunk is None else _without_dtype(trunk)
        self.kind = kind
        self.lm_logprob_feature = lm_logprob_feature
        self.feature_layer = feature_layer
        self.layers = layers
        self.text_features = text_features
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


@dataclass(frozen=True)
class ScorerBatch:
    """The rows that a language model reads, as `RMInputs.collate` arranges them.

    G prompts (encoder-decoders only), R rows of L tokens, B responses of at most T tokens.

    Attributes:
      prompt_ids_GP, prompt_mask_GP: what the encoder reads; None in a decoder-only model.
      prompt_rows_R: the prompt of each row; None in a decoder-only model.
      ids_RL, mask_RL: tokens of the rows, and 1 on real ones.
      parts_RL: number of the response that a token belongs to, 0 in a prompt, -1 on padding; None
        if no row holds several responses.
      positions_RL: of the tokens, if `parts_RL` is given and the model is decoder-only.
      places_BT, response_mask_BT: place (row * L + column) of the tokens that have an output, and 1
        on real ones.
    """

    prompt_ids_GP: Tensor | None
    prompt_mask_GP: Tensor | None
    prompt_rows_R: Tensor | None
    ids_RL: Tensor
    mask_RL: Tensor
    parts_RL: Tensor | None
    positions_RL: Tensor | None
    places_BT: Tensor
    response_mask_BT: Tensor

    def __post_init__(self):
        check_same_shape(ids_RL=self.ids_RL, mask_RL=self.mask_RL)
        check_same_shape(places_BT=self.places_BT, response_mask_BT=self.response_mask_BT)

    def attention_mask(self) -> Tensor:
        """The mask of the rows: (R, L) if every row has one response, else (R, 1, L, L)."""
        if self.parts_RL is None:
            return self.mask_RL
        return block_mask(self.parts_RL, self.mask_RL.bool())

    def layout(self) -> RaggedRows | None:
        """The parts of rows that hold several responses, for attention on a CPU.

        A GPU is faster with one mask for all rows than with many small products.
        """
        if self.parts_RL is None or self.parts_RL.device.type != "cpu":
            return None
        lengths = []
        for parts in self.parts_RL.tolist():
            counts = [0] * (max(parts) + 1)
            for part in parts:
                if part >= 0:
                    counts[part] += 1
            lengths.append(counts)
        return RaggedRows.of(lengths, self.parts_RL.device)

    def of_responses(self, rows: Tensor) -> Tensor:
        """Numbers of the rows (R, L, ...) -> those of the responses (B, T, ...)."""
        flat = rows.flatten(0, 1).index_select(0, self.places_BT.flatten())
        return flat.view(*self.places_BT.shape, *rows.shape[2:])

    def into_rows(self, features_BTF: Tensor) -> Tensor:
        """features_RLF: features of the responses, 0 elsewhere.

        The first token of a response is left out: nothing predicts a decoder's start token, and the
        last token of a prompt is common to its responses.
        """
        real_BT = self.response_mask_BT[:, 1:].bool()
        flat = features_BTF.new_zeros(self.ids_RL.numel(), features_BTF.shape[-1])
        flat = flat.index_copy(0, self.places_BT[:, 1:][real_BT], features_BTF[:, 1:][real_BT])
        return flat.view(*self.ids_RL.shape, -1)


def scorer_batch(
    input_ids: Tensor,
    attention_mask: Tensor,
    places: Tensor,
    response_mask: Tensor,
    decoder_input_ids: Tensor | None = None,
    decoder_attention_mask: Tensor | None = None,
    prompt_rows: Tensor | None = None,
    parts: Tensor | None = None,
    position_ids: Tensor | None = None,
) -> ScorerBatch:
    """The output of `RMInputs.collate` as a `ScorerBatch`."""
    if decoder_input_ids is None or decoder_attention_mask is None:
        return ScorerBatch(
            prompt_ids_GP=None,
            prompt_mask_GP=None,
            prompt_rows_R=None,
            ids_RL=input_ids,
            mask_RL=attention_mask,
            parts_RL=parts,
            positions_RL=position_ids,
            places_BT=places,
            response_mask_BT=response_mask,
        )
    return ScorerBatch(
        prompt_ids_GP=input_ids,
        prompt_mask_GP=attention_mask,
        prompt_rows_R=prompt_rows,
        ids_RL=decoder_input_ids,
        mask_RL=decoder_attention_mask,
        parts_RL=parts,
        positions_RL=None,
        places_BT=places,
        response_mask_BT=response_mask,
    )


def hidden_states(model: Any, batch: ScorerBatch, embeddings_RLD: Tensor | None = None) -> Tensor:
    """hidden_RLD, the last hidden states of the rows.

    An encoder reads each prompt once. Its states, and the keys and values that the decoder's
    cross-attention computes from them, are shared by the rows of a prompt where the model's
    attention can do that (kernels/attention.py).

    Args:
      embeddings_RLD: read in place of the tokens' embeddings.
    """
    read: dict[str, Tensor] = {"input_ids": batch.ids_RL}
    if embeddings_RLD is not None:
        read = {"inputs_embeds": embeddings_RLD}
    if not model.config.is_encoder_decoder:
        layout = {}
        if batch.positions_RL is not None:
            read["position_ids"] = batch.positions_RL
            if shares_cache(model):  # its attention reads the layout instead of the mask
                layout["shared_rows"] = batch.layout()
        return model.base_model(
            **read, **layout, attention_mask=batch.attention_mask(), use_cache=False
        ).last_hidden_state

    prompt_ids_GP, prompt_mask_GP = batch.prompt_ids_GP, batch.prompt_mask_GP
    rows_R = batch.prompt_rows_R
    assert prompt_ids_GP is not None and prompt_mask_GP is not None and rows_R is not None
    encoded = encode_prompts(model, prompt_ids_GP, prompt_mask_GP)
    encoded_mask = prompt_mask_GP
    if not (shares_prompts(model) and _in_equal_groups(rows_R, len(encoded))):
        encoded = encoded[rows_R]
        encoded_mask = encoded_mask[rows_R]
    return model.get_decoder()(
        **read,
        attention_mask=batch.attention_mask(),
        encoder_hidden_states=encoded,
        encoder_attention_mask=encoded_mask,
        use_cache=False,
    ).last_hidden_state


def _in_equal_groups(prompt_rows_R: Tensor, num_prompts: int) -> bool:
    """Whether the rows are 0 .. 0 1 .. 1 2 .. 2 ..., equally many of each prompt."""
    rows_per_prompt = len(prompt_rows_R) // num_prompts
    prompts = torch.arange(num_prompts, device=prompt_rows_R.device)
    return torch.equal(prompts.repeat_interleave(rows_per_prompt), prompt_rows_R)


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
    feature_head: FeatureHead | None  # None without text features

    def __init__(self, config: LanguageModelScorerConfig):
        super().__init__(config)
        trunk_config = config.trunk_config()
        self.is_encoder_decoder = trunk_config.is_encoder_decoder
        self.trunk = AutoModel.from_config(trunk_config, trust_remote_code=False)
        self.lm = None
        self.feature_in = None
        hidden_size: int = trunk_config.hidden_size
        if config.lm_logprob_feature:
            # a config of its own: `share_prompts` changes the attention of one model at a time
            lm_config = config.lm_config()
            self.lm = _lm_class(lm_config).from_config(lm_config, trust_remote_code=False)
            self.feature_in = nn.Linear(LM_FEATURES, hidden_size, bias=False)
        if config.kind == "segment":
            self.head = nn.Linear(hidden_size, config.num_labels or 0)
        else:
            pooled = 2 * LM_FEATURES if config.lm_logprob_feature else 0  # see `pooled_features`
            # only differences of scores are trained, so a bias would learn nothing
            self.head = nn.Linear(hidden_size + pooled, 1, bias=False)
        self.feature_head = None
        if config.text_features:
            pooled = 3 * LM_FEATURES if config.lm_logprob_feature else 0
            outputs = self.head.out_features
            self.feature_head = FeatureHead(len(TEXT_FEATURES) + pooled, outputs)
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
    ) -> "LanguageModelScorer":
        """A scorer whose trunk (and frozen language model) have the weights of `ckpt`.

        Its head is random; with `text_features` it is 0 (`start_as`).

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
            trunk_config.to_dict(),
            kind,
            lm_logprob_feature,
            feature_layer=0,
            layers=layers,
            text_features=text_features,
            **labels,
        )
        with torch.device("meta"):  # trunk and language model get their weights below
            model = cls(config)
        model.trunk = load_weights(
            AutoModel, ckpt, config=config.trunk_config(), dtype=torch.float32
        )
        check_direction(model.trunk, shape)
        _initialise(model.head, HEAD_STD)
        if model.feature_in is not None:
            model.lm = load_weights(_lm_class(trunk_config), ckpt, dtype=torch.float32)
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
        """Let the network compute what a linear model of its features does; None: 0."""
        assert self.feature_head is not None  # it has `text_features`
        nn.init.zeros_(self.head.weight)
        if self.head.bias is not None:
            nn.init.zeros_(self.head.bias)
        if model is None:
            nn.init.zeros_(self.feature_head.linear.weight)
            nn.init.zeros_(self.feature_head.linear.bias)
        else:
            self.feature_head.start_as(model)

    def freeze_lm(self) -> None:
        """Exclude the language model of the feature from training."""
        if self.lm is not None:
            self.lm.requires_grad_(False).eval()

    def train(self, mode: bool = True):
        super().train(mode)
        if self.lm is not None:
            self.lm.eval()  # dropout would change its features from step to step
        return self

    @property
    def shared_width(self) -> int | None:
        """Width of the network if its rows can hold several responses to a prompt, else None."""
        can = can_pack if self.is_encoder_decoder else can_share
        return self.trunk.config.hidden_size if can(self.trunk) else None

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        places: Tensor,
        response_mask: Tensor,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        prompt_rows: Tensor | None = None,
        parts: Tensor | None = None,
        position_ids: Tensor | None = None,
        features: Tensor | None = None,
        text_features: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> TokenClassifierOutput:
        """Logits (B, T, labels) of the responses' tokens, or scores (B, 1).

        The arguments are the output of `RMInputs.collate`. Without `features` (B, T, F), they are
        computed if the network reads them.
        """
        read = scorer_batch(
            input_ids,
            attention_mask,
            places,
            response_mask,
            decoder_input_ids,
            decoder_attention_mask,
            prompt_rows,
            parts,
            position_ids,
        )
        added_RLD = None
        if self.feature_in is not None:
            if features is None:
                features = self.features(read)
            features_RLF = read.into_rows(features.to(self.feature_in.weight.dtype))
            added_RLD = self.feature_in(features_RLF)
        hidden_RLD = self._hidden(read, added_RLD)
        hidden_BTD = read.of_responses(hidden_RLD)
        linear_BTL = None
        if self.feature_head is not None and text_features is not None and segments is not None:
            linear_BTL = self.feature_head(self.linear_inputs(text_features, segments, features))
        if self.config.kind == "segment":
            logits = self.head(hidden_BTD)
            return TokenClassifierOutput(
                logits=logits if linear_BTL is None else logits + linear_BTL
            )

        rows_B = torch.arange(len(hidden_BTD), device=hidden_BTD.device)
        last_B = read.response_mask_BT.sum(1) - 1
        last_BD = hidden_BTD[rows_B, last_B]
        if features is not None and self.feature_in is not None:
            pooled = pooled_features(features, read.response_mask_BT)
            last_BD = torch.cat([last_BD, pooled.to(last_BD.dtype)], -1)
        scores = self.head(last_BD)
        if linear_BTL is not None:
            scores = scores + linear_BTL[rows_B, last_B]
        return TokenClassifierOutput(logits=scores)

    def linear_inputs(
        self, text_features_BTF: Tensor, segments_BT: Tensor, features_BTF: Tensor | None
    ) -> Tensor:
        """What `feature_head` reads of each output, (B, T, F)."""
        if features_BTF is None:
            return text_features_BTF
        pooled = pooled_by_segment(features_BTF, segments_BT)
        return torch.cat([text_features_BTF, pooled.to(text_features_BTF.dtype)], -1)

    def _hidden(self, batch: ScorerBatch, added_RLD: Tensor | None) -> Tensor:
        """hidden_RLD of the trunk, with `added_RLD` added to the input of `feature_layer`."""
        embeddings_RLD = self.trunk.get_input_embeddings()(batch.ids_RL)
        if added_RLD is None:
            return hidden_states(self.trunk, batch, embeddings_RLD)
        layer_number = self.config.feature_layer or 0
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

    def _reading_layers(self) -> nn.ModuleList:
        """The layers that read the responses."""
        return layers_of(self.trunk.get_decoder() if self.is_encoder_decoder else self.trunk)

    def train_top_layers(self, n: int, key: str) -> TopLayers:
        """Freeze all but the head and the top n layers; see models/top_layers.py.

        Features enter at the lowest trained layer, so no gradient flows through those below it.

        Raises:
          UserError: the trunk has fewer than n layers.
        """
        result = train_top_layers(self.trunk, n, key)
        if self.feature_in is not None:
            self.config.feature_layer = max(len(self._reading_layers()) - n, 0)
        return result

    @torch.no_grad()
    def features(self, batch: ScorerBatch) -> Tensor:
        """features_BTF of the responses' tokens under the frozen language model.

        The first token of each response, and padding, have zeros. Logits are computed for the
        tokens of the responses only, block by block.
        """
        hidden_BTD = batch.of_responses(hidden_states(self.lm, batch))
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


def _lm_class(config: PretrainedConfig):
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def _initialise(layer: nn.Linear, std: float) -> None:
    """Give a layer of the meta device random weights and a bias of 0."""
    layer.to_empty(device="cpu")
    nn.init.normal_(layer.weight, std=std)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


NetworkT = TypeVar("NetworkT", bound=PreTrainedModel)


def speed_up_network(network: NetworkT, setting: str = "auto") -> NetworkT:
    """`kernels.install.speed_up`, and shared prompts in the stacks of a `LanguageModelScorer`."""
    if isinstance(network, LanguageModelScorer):
        for model in (network.trunk, network.lm):
            if model is None:
                continue
            if network.is_encoder_decoder:
                share_prompts(model, setting)
            elif can_share(model) and model._supports_attention_backend:
                share_cache(model, setting)
    return speed_up(network, setting)


def lm_features(
    network: nn.Module,
    inputs: RMInputs,
    read: Sequence[RMInput],
    batch_tokens: int = FEATURE_TOKENS,
) -> list[RMInput]:
    """The inputs with the features of the frozen language model.

    They never change, so training computes them once, reads them in every epoch and does not run
    the language model again. Inputs of a network without `lm_logprob_feature` stay as they are.

    Args:
      batch_tokens: padded tokens that are read together.
    """
    result = list(read)
    if not isinstance(network, LanguageModelScorer) or network.feature_in is None:
        return result
    device = network.head.weight.device
    batches = batches_by_prompt(read, batch_tokens)
    for rows in tqdm(batches, "log-probabilities", disable=not sys.stderr.isatty()):
        batch = inputs.collate([read[i] for i in rows])
        on_device = {}
        for name, tensor in batch.items():
            if name not in LINEAR_INPUTS:
                on_device[name] = tensor.to(device)
        features_BTF = network.features(scorer_batch(**on_device)).cpu()
        for i, features_TF in zip(rows, features_BTF):
            length = len(read[i].output_ids)
            result[i] = replace(read[i], features_TF=features_TF[:length].clone())
    return result
