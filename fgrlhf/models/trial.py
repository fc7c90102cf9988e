"""Checks of a policy when it is loaded: a trial run instead of wrong numbers or a crash later.

A policy computes log-probabilities in ways that a model of transformers may not support: with
padded prompts, with several responses in one row, and token by token with a cache that the
responses of a prompt share. The trial compares them with the model's own forward pass, in which
every prompt is alone.

A second trial, of one response each, has prompts around the length of the model's windows
(`windows_of`): one is longer, the response of another crosses it, a third is padded. If the decoder
of an encoder-decoder has windows, another one has short prompts and responses around their length.
In a large model with a long window they would take minutes and are left out, with a note.

Axes here, besides those of fgrlhf/types.py: M tokens that a decoder reads before a response.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.shared_messages import print_once
from fgrlhf.kernels.install import shares_cache, shares_prompts
from fgrlhf.models.base import Policy, name_of
from fgrlhf.models.causal import SharedCacheSteps
from fgrlhf.models.chat import special_ids
from fgrlhf.models.decoding import Steps
from fgrlhf.models.encoder_decoder import EncoderDecoderPolicy, EncoderDecoderSteps
from fgrlhf.models.loading import max_positions
from fgrlhf.models.recorded_steps import never_record
from fgrlhf.models.trunk import text_config

# The trial: a long and a short prompt with two responses each, of three and two tokens.
PROMPT_LENGTHS = (6, 2)
RESPONSE_LENGTHS = (3, 2)
# The long trial: the lengths of its prompts, relative to a window, of a short one beside them, and
# of their responses.
AROUND_WINDOW = (18, -4)  # so that the second has more than a little padding
SHORT_PROMPT_LENGTH = 2
LONG_RESPONSE_LENGTHS = (8,)
# Parameters (without the embeddings) times tokens of the long trial's longest text, and the tokens
# of that text: more would take minutes on a CPU, or gigabytes in attention.
MAX_WORK = 5e11
MAX_TOKENS = 5_000
# Largest accepted difference of two logits, relative to the largest logit. Rounding in half
# precision may change the experts to which a token is sent.
TOLERANCE = 1e-3
TOLERANCE_OF_HALF_PRECISION = 0.03
TOLERANCE_OF_LONG_HALF_PRECISION = 0.1


class _TrialError(Exception):
    """A trial that raised an error or gave other logits: the reason and the way out."""


@dataclass(frozen=True)
class _Trial:
    """Prompts, responses and the logits that the model itself computes for them.

    Attributes:
      prompt_ids_GP, prompt_mask_GP: as the policy pads them.
      response_ids_BT, response_mask_BT: K responses per prompt, B = G K.
      expected_BTV: the logits before each response token.
      tolerance: largest accepted difference of two logits.
    """

    prompt_ids_GP: Tensor
    prompt_mask_GP: Tensor
    response_ids_BT: Tensor
    response_mask_BT: Tensor
    expected_BTV: Tensor
    tolerance: float

    @property
    def num_responses(self) -> int:
        """K."""
        return len(self.response_ids_BT) // len(self.prompt_ids_GP)


def check_special_tokens(policy: Policy) -> None:
    """Raise `UserError` if a token that every run needs is not in the model's vocabulary.

    Or if an ordinary token would end a response: the class of a config has a number of its own for
    the end token, which need not be that of the tokenizer.
    """
    needed = {"eos_token_id": policy.end_id, "pad_token_id": policy.tokenizer.pad_token_id}
    if isinstance(policy, EncoderDecoderPolicy):
        start = getattr(policy.model.config, "decoder_start_token_id", None)
        needed["decoder_start_token_id"] = start
    for name, token in needed.items():
        is_int = isinstance(token, int) and not isinstance(token, bool)
        if not is_int or not 0 <= token < policy.num_embeddings:
            raise UserError(
                f"{name} of the model {name_of(policy.tokenizer)} is {shorten(repr(token), 40)},"
                f" but its tokens are 0 to {policy.num_embeddings - 1}: correct config.json,"
                " generation_config.json or tokenizer_config.json of its folder"
            )
    tokenizer = policy.tokenizer
    marked = {*special_ids(tokenizer), *tokenizer.added_tokens_decoder}
    if policy.end_id not in marked and tokenizer.eos_token is not None:
        text = shorten(repr(tokenizer.convert_ids_to_tokens(policy.end_id)), 40)
        raise UserError(
            f"the model {name_of(tokenizer)} ends a response with the ordinary token {text}"
            f" (eos_token_id {policy.end_id}), but its tokenizer with {tokenizer.eos_token}"
            f" ({tokenizer.eos_token_id}): correct eos_token_id in generation_config.json, or in"
            " config.json if there is none"
        )


@torch.no_grad()
def check_logits(policy: Policy) -> None:
    """Compare the policy's logits with the model's own.

    If the model's attention cannot share prompts (kernels/attention.py, kernels/shared_cache.py),
    the policy continues with that of PyTorch.

    Raises:
      UserError: they differ, one of the two cannot be computed, or they are not finite.
    """
    shares = shares_cache(policy.model) or shares_prompts(policy.model)
    try:
        _run_trial(policy)
        return
    except _TrialError as failure:
        reason = failure
    if shares:
        policy.model.set_attn_implementation("sdpa")
        try:
            _run_trial(policy)
            return
        except _TrialError as failure:
            reason = failure
    name = type(policy.model).__name__
    raise UserError(f"{name} cannot be used as a policy: {reason}")


def _run_trial(policy: Policy) -> None:
    """Raise `_TrialError` if the policy's logits are not the model's, or cannot be computed."""
    trial = None
    try:
        trial = make_trial(policy)
        _check_finite(policy, trial)
        _check_updates(policy, trial)
        _check_layers(policy)
        _check_steps(policy, trial)
        if torch.cuda.is_available():
            check_recorded_steps(policy, trial)
        window = _window_to_try(policy, windows_of(policy.model))
        if window is not None:
            lengths = [max(1, window + more) for more in AROUND_WINDOW]
            prompts = (*lengths, SHORT_PROMPT_LENGTH)
            _check_long_texts(policy, window, prompts, LONG_RESPONSE_LENGTHS)
        window = _window_to_try(policy, decoder_windows_of(policy.model))
        if window is not None:
            responses = (window + LONG_RESPONSE_LENGTHS[0], RESPONSE_LENGTHS[1])
            _check_long_texts(policy, window, PROMPT_LENGTHS, responses)
    except (UserError, _TrialError):
        raise
    except Exception as error:  # the code of a model's forward pass can raise anything
        seen = f"fails ({type(error).__name__}: {shorten(error, 200)})"
        if trial is None:
            reason = f"its own forward pass {seen}. Correct its config, or use another model"
        else:
            reason = (
                f"a trial run of sampling and scoring {seen}. Its class lacks what a policy needs,"
                " whatever its config says: use another model"
            )
        raise _TrialError(reason) from error
    finally:
        if policy.frozen_layers is not None:
            policy.frozen_layers.forget()


def _window_to_try(policy: Policy, windows: list[int]) -> int | None:
    """The longest of these windows that the long trial can afford; None: there is none."""
    embeddings = policy.num_embeddings * policy.hidden_size
    parameters = sum(p.numel() for p in policy.model.parameters()) - embeddings
    longest_text = min(MAX_TOKENS, int(MAX_WORK / max(parameters, 1)))
    more = max(AROUND_WINDOW) + max(LONG_RESPONSE_LENGTHS)
    tried = [window for window in windows if window + more <= longest_text]
    if tried != windows:
        _note_untried(type(policy.model).__name__, windows[0])
    return tried[0] if tried else None


@cache  # a run loads a policy several times
def _note_untried(name: str, window: int) -> None:
    print_once(
        f"note: {name} has a window or chunk of {window} tokens. Its self-test when loaded has"
        " shorter texts only, because one so long would take minutes: if `kl` is not about 0 in the"
        " first step of a training with long texts, the model is not computed rightly beyond it"
    )


def _check_long_texts(
    policy: Policy, window: int, prompts: tuple[int, ...], responses: tuple[int, ...]
) -> None:
    """The checks of updates and steps with texts that are longer than this window.

    Args:
      prompts, responses: their lengths.
    """
    trial = make_trial(policy, prompts, responses, TOLERANCE_OF_LONG_HALF_PRECISION)
    try:
        _check_finite(policy, trial)
        _check_updates(policy, trial)
        _check_steps(policy, trial)
    except _TrialError:
        raise _TrialError(
            f"in texts of more than {window} tokens, a length in its config, it computes different"
            " logits token by token, or beside other texts, than for a whole text alone, so"
            " log-probabilities would be wrong: use another model"
        ) from None


def _check_updates(policy: Policy, trial: _Trial) -> None:
    """An update reads a response after its padded prompt, alone or beside another response."""
    long_prompt = slice(0, 1)  # a single response: nothing is padded or shared
    if not _agree(policy, trial, long_prompt):
        raise _TrialError(
            "it computes different logits than the policy, so log-probabilities would be wrong. It"
            " probably changes its logits after the output layer: add that to `project_states`"
            " (fgrlhf/models/logprobs.py), or use another model"
        )
    K = trial.num_responses
    one_response_each = slice(0, None, K + 1)
    all_responses = slice(0, None)
    for rows in (one_response_each, all_responses) if K > 1 else (all_responses,):
        if not _agree(policy, trial, rows):
            raise _TrialError(
                "the logits of a prompt with padding, beside a longer prompt, are not those of the"
                " prompt alone, so log-probabilities would depend on the batch: use another model"
            )


def make_trial(
    policy: Policy,
    prompt_lengths: tuple[int, ...] = PROMPT_LENGTHS,
    response_lengths: tuple[int, ...] = RESPONSE_LENGTHS,
    relative_of_half_precision: float = TOLERANCE_OF_HALF_PRECISION,
) -> _Trial:
    """Prompts and responses of ordinary tokens, with the model's own logits.

    Args:
      prompt_lengths: of the G prompts.
      response_lengths: of the K responses of each of them.
      relative_of_half_precision: the accepted difference if the model's weights are not fp32.
    """
    tokens = _ordinary_tokens(policy)

    def text(start: int, length: int) -> Tensor:
        chosen = [tokens[(start + i) % len(tokens)] for i in range(length)]
        return torch.tensor(chosen, device=policy.device)

    P = max(prompt_lengths)
    T = max(response_lengths)
    G = len(prompt_lengths)
    K = len(response_lengths)
    prompt_ids_GP = torch.full((G, P), policy.tokenizer.pad_token_id, device=policy.device)
    prompt_mask_GP = torch.zeros_like(prompt_ids_GP)
    pads_left = policy.tokenizer.padding_side == "left"
    response_ids_GKT = torch.stack([text(3 * b, T) for b in range(G * K)]).view(G, K, T)
    expected = []
    for g, length in enumerate(prompt_lengths):
        prompt_ids = text(g, length)
        columns = slice(P - length, P) if pads_left else slice(0, length)
        prompt_ids_GP[g, columns] = prompt_ids
        prompt_mask_GP[g, columns] = 1
        expected.append(_own_logits(policy, prompt_ids.expand(K, -1), response_ids_GKT[g]))
    response_mask_KT = torch.zeros(K, T, dtype=torch.long, device=policy.device)
    for k, length in enumerate(response_lengths):
        response_mask_KT[k, :length] = 1
    expected_BTV = torch.cat(expected)
    is_single = policy.model.dtype == torch.float32
    relative = TOLERANCE if is_single else relative_of_half_precision
    return _Trial(
        prompt_ids_GP,
        prompt_mask_GP,
        response_ids_GKT.flatten(0, 1),
        response_mask_KT.repeat(G, 1),
        expected_BTV,
        relative * float(expected_BTV.float().abs().max()),
    )


def _ordinary_tokens(policy: Policy) -> list[int]:
    """Different tokens of text, from the whole vocabulary; equal ones would hide many errors."""
    special = set(policy.tokenizer.all_special_ids)
    size = min(len(policy.tokenizer), policy.num_embeddings)
    ordinary = [i for i in range(size) if i not in special] or [policy.end_id]
    return ordinary[:: max(1, len(ordinary) // 20)]


def _own_logits(policy: Policy, prompt_ids_KP: Tensor, response_ids_KT: Tensor) -> Tensor:
    """The logits before each response token, from the model's own forward pass, expected_KTV."""
    T = response_ids_KT.shape[1]
    if isinstance(policy, EncoderDecoderPolicy):
        start_M = response_ids_KT.new_tensor(policy.decoder_start_ids)
        start_KM = start_M.expand(len(response_ids_KT), -1)
        decoder_ids = torch.cat([start_KM, response_ids_KT[:, :-1]], 1)
        inputs: dict[str, Any] = {
            "input_ids": prompt_ids_KP,
            "decoder_input_ids": decoder_ids,
        }
    else:
        inputs = {"input_ids": torch.cat([prompt_ids_KP, response_ids_KT[:, :-1]], 1)}
        if "logits_to_keep" in inspect.signature(policy.model.forward).parameters:
            inputs["logits_to_keep"] = T  # those of a whole long text need gigabytes
    return policy.model(**inputs, use_cache=False).logits[:, -T:]


def _check_layers(policy: Policy) -> None:
    """Raise `_TrialError` if no layer of a decoder-only model is one of attention."""
    if policy.model.config.is_encoder_decoder:
        return
    layers = DynamicCache(config=policy.model.config).layers
    if layers and not any(isinstance(layer, CacheLayerMixin) for layer in layers):
        raise _TrialError(
            "none of its layers is an attention layer, and only those count the tokens in a cache"
            " of transformers: use another model"
        )


def _check_steps(policy: Policy, trial: _Trial) -> None:
    """Compute the responses' logits token by token.

    Before the last token the long prompt's responses end, which tests `Steps.keep`.
    """
    if not _steps_agree(policy, trial, _steps_of(policy, trial, recorded=False)):
        windows = [*windows_of(policy.model), *decoder_windows_of(policy.model)]
        cause = (
            " (caches of transformers keep every token if a window is 1)" if 1 in windows else ""
        )
        raise _TrialError(
            "it computes different logits token by token, with a cache, than for a whole text"
            f"{cause}, so samples would not follow the log-probabilities that are trained: use"
            " another model"
        )


def check_recorded_steps(policy: Policy, trial: _Trial) -> None:
    """Do not record the decoding steps of a model that computes something else in them."""
    steps = _steps_of(policy, trial, recorded=True)
    if not isinstance(steps, EncoderDecoderSteps | SharedCacheSteps):
        return  # it has no steps that could be recorded
    # without a CUDA graph, since the policy may still be on the CPU: the steps are the same
    steps.recording = None
    try:
        agree = _steps_agree(policy, trial, steps)
    except Exception:  # the code of a model's forward pass can raise anything
        agree = False
    if not agree:
        never_record(policy.model)


def _steps_of(policy: Policy, trial: _Trial, recorded: bool) -> Steps:
    K = trial.num_responses
    T = trial.response_ids_BT.shape[1]
    return policy._steps(trial.prompt_ids_GP, trial.prompt_mask_GP, K, T, recorded)


def _steps_agree(policy: Policy, trial: _Trial, steps: Steps) -> bool:
    """Whether the logits of these steps are the expected ones."""
    K = trial.num_responses
    B, T = trial.response_ids_BT.shape
    rows = torch.arange(B, device=policy.device)
    hidden_BD = steps.first()
    for t in range(T):
        logits_BV = policy.project(hidden_BD)
        if not _close(logits_BV, trial.expected_BTV[rows, t], trial):
            return False
        if t == T - 1:
            break
        ids_B = trial.response_ids_BT[rows, t]
        if t == T - 2:
            stay = steps.keepable(rows >= K)
            if len(stay) < len(rows):
                steps.keep(stay)
                rows = rows[stay]
                ids_B = ids_B[stay]
        hidden_BD = steps.next(ids_B)
    return True


def _check_finite(policy: Policy, trial: _Trial) -> None:
    if not torch.isfinite(trial.expected_BTV).all():
        raise UserError(
            f"the logits of the model {name_of(policy.tokenizer)} are NaN or infinite: its weights"
            " are damaged, or the training that wrote them diverged. Use an earlier checkpoint, or"
            " another model"
        )


def _agree(policy: Policy, trial: _Trial, rows: slice) -> bool:
    """Whether the logits before the response tokens, as in an update, are the expected ones."""
    K = trial.num_responses
    prompt_ids_BP = trial.prompt_ids_GP.repeat_interleave(K, 0)
    prompt_mask_BP = trial.prompt_mask_GP.repeat_interleave(K, 0)
    hidden_BTD = policy.hidden(
        prompt_ids_BP[rows],
        prompt_mask_BP[rows],
        trial.response_ids_BT[rows],
        trial.response_mask_BT[rows],
    )
    logits_BTV = policy.project(hidden_BTD)
    real_BT = trial.response_mask_BT[rows].bool()
    return _close(logits_BTV[real_BT], trial.expected_BTV[rows][real_BT], trial)


def _close(logits: Tensor, expected: Tensor, trial: _Trial) -> bool:
    return torch.allclose(logits.float(), expected.float(), atol=trial.tolerance, rtol=0)


# ---- lengths of windows --------------------------------------------------------------------------

# A model that is right for short texts can be wrong for longer ones: the attention of a layer sees
# only the last tokens, a recurrent layer reads a text in chunks, an indexer chooses the tokens that
# are seen. The config has these lengths, under a name of its own in every family.
KEYS = (
    "attention_chunk_size",
    "attention_window",
    "attention_window_size",
    "block_size",
    "chunk_size",
    "global_block_size",
    "index_topk",
    "keep_window_size",
    "local_attention",
    "local_radius",
    "mamba_chunk_size",
    "sliding_window",
    "sliding_window_size",
    "window_size",
)
ATTENTION_LAYERS = frozenset({"attention", "full_attention", "sliding_attention"})
# The chunk of linear attention in transformers (Qwen3-Next, Kimi Linear), which no config names.
CHUNK_OF_LINEAR_LAYERS = 64


def windows_of(model: PreTrainedModel) -> list[int]:
    """These lengths of the stack that reads a prompt, in tokens, longest first.

    Those that no text can exceed are left out.
    """
    stack = "encoder" if model.config.is_encoder_decoder else "decoder"
    return _windows(model, _config_of(model.config, "encoder"), stack)


def decoder_windows_of(model: PreTrainedModel) -> list[int]:
    """These lengths of an encoder-decoder's decoder, which reads the response; [] of other models.

    Only a config for each stack (T5Gemma) tells them apart from those of the encoder.
    """
    config = _config_of(model.config, "decoder")
    if not model.config.is_encoder_decoder or config is model.config:
        return []
    return _windows(model, config, "decoder")


def _config_of(config: PretrainedConfig, stack: str) -> PretrainedConfig:
    """The config of a stack of a nested encoder-decoder; of other models, their own."""
    part = getattr(config, stack, None)
    return part if isinstance(part, PretrainedConfig) else config


def _windows(
    model: PreTrainedModel, config: PretrainedConfig, stack: Literal["encoder", "decoder"]
) -> list[int]:
    limit = max_positions(text_config(model), stack)
    found = set(_lengths(config.get_text_config().to_dict()))
    return sorted((n for n in found if n > 0 and (limit is None or n < limit)), reverse=True)


def _lengths(config: dict[str, Any]) -> Iterator[int]:
    for key in KEYS:
        value = config.get(key)
        values = value if isinstance(value, list) else [value]  # LED has one for each layer
        yield from (n for n in values if isinstance(n, int) and not isinstance(n, bool))
    if not set(config.get("layer_types") or ()) <= ATTENTION_LAYERS:
        yield CHUNK_OF_LINEAR_LAYERS
