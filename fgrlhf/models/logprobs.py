"""Token log-probabilities without storing logits.

    log pi(a | h) = z[a] / tau - logsumexp(z / tau),   z = W h
    entropy = -sum_v p_v log p_v,   p = softmax(z / tau)

z has one entry per vocabulary item: 100 MB for 800 tokens of a T5. A plain log-softmax with an
entropy stores four or five arrays of that size for the backward pass. Here the gradient overwrites
z, and tokens go through the projection block by block: z of a block is discarded and computed again
when its gradient is needed.

Axes here: N tokens, D width of a hidden state, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PretrainedConfig, PreTrainedModel

from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import Sampling
from fgrlhf.kernels.layers import Linear
from fgrlhf.models.decoding import (
    EXCLUDED,
    Repetitions,
    likeliest,
    log_kept_mass,
    unpacked,
)
from fgrlhf.models.trunk import text_config
from fgrlhf.utils import check_shape

BLOCK = 1024  # tokens; z of one block is 130 MB in fp32 with T5's vocabulary
LIKELIEST = 16  # tokens whose logits in bf16 are computed again in fp32


def chosen_logprobs(
    project: Callable[[Tensor], Tensor],
    hidden_ND: Tensor,
    ids_N: Tensor,
    temperature: float = 1.0,
    block: int = BLOCK,
    entropy_gradient: bool = False,
    support_NW: Tensor | None = None,
    repetitions: Repetitions | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the chosen tokens and entropies of their distributions.

    They are in fp32, or in float64 if the projection is.

    Args:
      project: hidden states -> logits over the vocabulary. It is called again in the backward pass.
      hidden_ND: the hidden states from which the tokens are predicted.
      ids_N: the chosen tokens.
      temperature: tau.
      block: tokens that go through the projection together.
      entropy_gradient: whether a gradient flows through the entropy too.
      support_NW: the tokens that could be drawn (decoding.py), which the distribution is restricted
        to; None: all.
      repetitions: the tokens before each, which are penalised; None: they are not.

    Returns:
      (logprobs_N, entropy_N)

    Raises:
      ValueError: the arguments have other shapes, or different numbers of tokens.
    """
    check_shape("hidden_ND", hidden_ND, (None, None))
    check_shape("ids_N", ids_N, (len(hidden_ND),))
    compute = _block_with_entropy_gradient if entropy_gradient else _block
    if len(ids_N) <= block:
        return compute(project, hidden_ND, ids_N, temperature, support_NW, repetitions)
    logprobs_of_blocks = []
    entropy_of_blocks = []
    for start in range(0, len(ids_N), block):
        part = slice(start, start + block)
        part_support_NW = None if support_NW is None else support_NW[part]
        # `checkpoint` discards z after the forward pass and calls `compute` again for the gradient
        logprobs_N, entropy_N = checkpoint(
            compute,
            project,
            hidden_ND[part],
            ids_N[part],
            temperature,
            part_support_NW,
            None if repetitions is None else repetitions[part],
            use_reentrant=False,
        )
        logprobs_of_blocks.append(logprobs_N)
        entropy_of_blocks.append(entropy_N)
    return torch.cat(logprobs_of_blocks), torch.cat(entropy_of_blocks)


@torch.no_grad()
def logprobs_and_margins(
    project: Callable[[Tensor], Tensor], hidden_ND: Tensor, ids_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of given tokens, and by how much they fall short of the likeliest token's.

        log p(a)    and    log p(a) - max_v log p(v) = z[a] - max_v z[v]

    Both are in fp32 and without gradient. Arguments as in `chosen_logprobs`.

    Returns:
      (logprobs_N, margins_N)

    Raises:
      ValueError: the arguments have other shapes, or different numbers of tokens.
    """
    check_shape("hidden_ND", hidden_ND, (None, None))
    check_shape("ids_N", ids_N, (len(hidden_ND),))
    logprobs = []
    margins = []
    for block_hidden_ND, block_ids_N in zip(hidden_ND.split(BLOCK), ids_N.split(BLOCK)):
        logits_NV = project(block_hidden_ND).float()
        chosen_N = logits_NV.gather(-1, block_ids_N[:, None])[:, 0]
        logprobs.append(chosen_N - logits_NV.logsumexp(-1))
        margins.append(chosen_N - logits_NV.amax(-1))
    return torch.cat(logprobs), torch.cat(margins)


@torch.no_grad()
def log_kept_mass_of_states(
    project: Callable[[Tensor], Tensor], hidden_ND: Tensor, sampling: Sampling
) -> Tensor:
    """log_kept_mass_N of hidden states, in fp32 and without gradient: see `log_kept_mass`.

    Arguments as in `chosen_logprobs`.
    """
    blocks = []
    for block_hidden_ND in hidden_ND.split(BLOCK):
        blocks.append(log_kept_mass(project(block_hidden_ND), sampling))
    return torch.cat(blocks)


def project_states(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Last hidden states (..., D) -> logits (..., V), as in the model's own forward pass."""
    config = text_config(model)
    if _scales_states(config):
        hidden = hidden * config.d_model**-0.5
    output_layer = model.get_output_embeddings()
    assert output_layer is not None, "a language model has an output layer"
    logits = output_layer(hidden)
    if logits.dtype == torch.bfloat16 and type(output_layer) is Linear:
        logits = _refined(logits, hidden, output_layer)
    bias = getattr(model, "final_logits_bias", None)  # BART
    if bias is not None:
        logits = logits + bias
    scale = getattr(model, "logit_scale", None)  # Cohere
    if scale is not None:
        logits = logits * scale
    divisor = getattr(config, "logits_scaling", None)  # Granite
    if divisor is not None:
        logits = logits / divisor
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    return logits


def _refined(logits: Tensor, hidden: Tensor, layer: Linear) -> Tensor:
    """The logits in fp32, with the likeliest tokens' summed and kept in fp32.

    bf16 keeps a logit near 30 to the next multiple of 1/8. Half of the difference between
    log-probabilities of sampling and of scoring came from that. The distribution depends on its
    likeliest tokens, whose products with the state are few. The gradient is that of the layer.

    Args:
      logits: (..., V) in bf16, the layer's output.
      hidden: (..., D), the layer's input.
    """
    weight_VD = layer.weight.detach()
    refined = logits.float()
    # a GPU would wait for small products, and the parts of a sharded weight have another type
    if type(layer.weight) is not nn.Parameter or weight_VD.device.type != "cpu":
        return refined
    with torch.no_grad():
        C = min(LIKELIEST, logits.shape[-1])
        ids_C = likeliest(refined.flatten(0, -2), C)[1].view(*logits.shape[:-1], C)
        weight_CD = weight_VD[ids_C].bfloat16().float()  # (..., C, D)
        exact_C = (weight_CD * hidden.bfloat16().float()[..., None, :]).sum(-1)
        if layer.bias is not None:
            exact_C += layer.bias.bfloat16().float()[ids_C]
        refined.scatter_(-1, ids_C, exact_C)
    return refined


def _scales_states(config: PretrainedConfig) -> bool:
    """Whether the last states are divided by the root of their width, as with tied embeddings."""
    if config.model_type in ("umt5", "switch_transformers"):
        return config.tie_word_embeddings
    return getattr(config, "scale_decoder_outputs", False)  # T5, mT5


class _ChosenLogprob(torch.autograd.Function):
    """log softmax(z)[a] and logsumexp(z) per row. The gradient overwrites z.

        d log softmax(z)[a] / d z_v = 1[v = a] - p_v

    times the incoming gradient g. One array of the size of z instead of five. Nothing may read z
    after the backward pass, and there can be no second one.
    """

    @staticmethod
    def forward(ctx, logits_NV: Tensor, ids_N: Tensor) -> tuple[Tensor, Tensor]:
        logsumexp_N = logits_NV.logsumexp(-1)
        ctx.save_for_backward(logits_NV, ids_N, logsumexp_N)
        ctx.mark_non_differentiable(logsumexp_N)
        chosen_N = logits_NV.gather(-1, ids_N[:, None])[:, 0]
        return chosen_N - logsumexp_N, logsumexp_N

    @staticmethod
    def backward(ctx, grad_N: Tensor, _) -> tuple[Tensor, None]:
        logits_NV, ids_N, logsumexp_N = ctx.saved_tensors
        grad_N1 = grad_N[:, None]
        # in place: z becomes p_v = exp(z_v - logsumexp(z)), then -p_v g ...
        gradient_NV = logits_NV.sub_(logsumexp_N[:, None]).exp_().mul_(-grad_N1)
        # ... then g is added at the chosen token
        return gradient_NV.scatter_add_(-1, ids_N[:, None], grad_N1), None


def scaled_logits(
    project: Callable[[Tensor], Tensor],
    hidden_ND: Tensor,
    temperature: float,
    support_NW: Tensor | None,
    repetitions: Repetitions | None = None,
) -> Tensor:
    """logits_NV in fp32 or float64, by penalty and temperature, `EXCLUDED` outside the support."""
    logits_NV = project(hidden_ND)
    logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    if repetitions is not None:
        logits_NV = repetitions.penalized(logits_NV)
    if temperature != 1:
        logits_NV = logits_NV.div_(temperature)
    if support_NW is not None:
        logits_NV = logits_NV.masked_fill_(~unpacked(support_NW, logits_NV.shape[-1]), EXCLUDED)
    return logits_NV


def _block(
    project: Callable[[Tensor], Tensor],
    hidden_ND: Tensor,
    ids_N: Tensor,
    temperature: float,
    support_NW: Tensor | None,
    repetitions: Repetitions | None,
) -> tuple[Tensor, Tensor]:
    """(logprobs_N, entropy_N), the entropy without a gradient."""
    logits_NV = scaled_logits(project, hidden_ND, temperature, support_NW, repetitions)
    logprobs_N, logsumexp_N = _ChosenLogprob.apply(logits_NV, ids_N)
    with torch.no_grad():
        # -sum_v p_v log p_v = logsumexp(z) - sum_v p_v z_v
        z_NV = logits_NV.detach()
        p_NV = (z_NV - logsumexp_N[:, None]).exp_()
        entropy_N = logsumexp_N - torch.linalg.vecdot(p_NV, z_NV)
    return logprobs_N, entropy_N


def _block_with_entropy_gradient(
    project: Callable[[Tensor], Tensor],
    hidden_ND: Tensor,
    ids_N: Tensor,
    temperature: float,
    support_NW: Tensor | None,
    repetitions: Repetitions | None,
) -> tuple[Tensor, Tensor]:
    """(logprobs_N, entropy_N), both with a gradient.

    This is plain autograd, which stores several arrays of the size of z.
    """
    logits_NV = scaled_logits(project, hidden_ND, temperature, support_NW, repetitions)
    logprobs_NV = torch.log_softmax(logits_NV, -1)
    chosen_N = logprobs_NV.gather(-1, ids_N[:, None])[:, 0]
    entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
    return chosen_N, entropy_N


def check_logprobs(logprobs_BT: Tensor, what: str) -> None:
    """Check that log-probabilities (or values) are finite; the cost is negligible.

    Args:
      what: name of the numbers in the message.

    Raises:
      UserError: a number is NaN or infinite.
    """
    finite_BT = torch.isfinite(logprobs_BT)
    if bool(finite_BT.all()):
        return
    b, t = (~finite_BT).nonzero()[0].tolist()
    raise UserError(
        f"{what} are NaN or infinite at token {t} of response {b} of a batch: the weights are"
        " damaged, or training has diverged, so the responses are meaningless. Use an earlier"
        " checkpoint, or train again with a lower train.lr"
    )
