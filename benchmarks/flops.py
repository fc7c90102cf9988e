"""Model FLOPs of a step's phases: the work that the algorithm needs in any implementation.

A product of (m, k) and (k, n) matrices is 2 m k n FLOPs. Norms, softmax and other elementwise work
are not counted; a backward pass costs twice its forward pass. Only real tokens count, each prompt
is encoded once for all its samples, and scoring needs no forward pass of the policy, because
sampling has just computed these log-probabilities. FLOPs per second therefore measure useful work:
a side that computes padding, or encodes a prompt several times, has a lower rate.
"""

from collections.abc import Sequence

from benchmarks.workload import RMDims, Size, T5Dims


def encoder_flops(dims: T5Dims, tokens: int) -> float:
    """One prompt of n tokens: L (2n (4 d i + 2 d f) + 4 n^2 i), with i = heads * d_kv."""
    linear = 4 * dims.d_model * dims.inner + 2 * dims.d_model * dims.d_ff
    return dims.layers * (2 * tokens * linear + 4 * tokens**2 * dims.inner)


def cross_flops(dims: T5Dims, tokens: int) -> float:
    """Keys and values of a prompt's n tokens for all decoder layers: L 2n (2 d i)."""
    return dims.layers * 4 * tokens * dims.d_model * dims.inner


def decoder_flops(dims: T5Dims, tokens: int, prompt: int, cached: bool = False) -> float:
    """Decode t response tokens that attend to themselves and n prompt tokens.

    FLOPs: L (2t (6 d i + 2 d f) + 4 t^2 i + 4 t n i). `cached`: token by token, each attends only
    to the tokens before it: 2 t (t + 1) i in place of 4 t^2 i.
    """
    linear = 6 * dims.d_model * dims.inner + 2 * dims.d_model * dims.d_ff
    attention = 2 * tokens * (tokens + 1) if cached else 4 * tokens**2
    attention += 4 * tokens * prompt
    return dims.layers * (2 * tokens * linear + attention * dims.inner)


def logits_flops(dims: T5Dims, tokens: int) -> float:
    """The projection of t hidden states onto the vocabulary: 2 t d V."""
    return 2 * tokens * dims.d_model * dims.vocab


def forward_flops(
    dims: T5Dims,
    prompts: Sequence[int],
    answers: Sequence[Sequence[int]],
    logits: bool,
    cached: bool = False,
) -> float:
    """A forward pass over each prompt once and all its answers.

    `answers[g]` holds the lengths of the answers to prompt g.
    """
    total = 0.0
    for prompt, lengths in zip(prompts, answers, strict=True):
        total += encoder_flops(dims, prompt) + cross_flops(dims, prompt)
        for length in lengths:
            total += decoder_flops(dims, length, prompt, cached)
            if logits:
                total += logits_flops(dims, length)
    return total


def longformer_flops(dims: RMDims, tokens: int) -> float:
    """Read n tokens that each attend to w + 1 tokens, or to all n if n is smaller.

    FLOPs: L (2n (4 h^2 + 2 h f) + 4 n min(n, w + 1) h).
    """
    linear = 4 * dims.hidden**2 + 2 * dims.hidden * dims.ff
    return dims.layers * (
        2 * tokens * linear + 4 * tokens * min(tokens, dims.window + 1) * dims.hidden
    )


def step_flops(
    size: Size, prompts: Sequence[int], answers: Sequence[Sequence[int]], judged: Sequence[int]
) -> dict[str, float]:
    """FLOPs of each phase. `judged`: the length of every reward-model input."""
    policy = forward_flops(size.policy, prompts, answers, logits=True)
    value = forward_flops(size.value, prompts, answers, logits=False)
    phases = {
        "generation": forward_flops(size.policy, prompts, answers, logits=True, cached=True),
        "scoring": policy + value,  # reference and critic
        "rewards": sum(longformer_flops(size.reward, tokens) for tokens in judged),
        "updates": 3 * size.epochs * (policy + value),
    }
    return {**phases, "step": sum(phases.values())}


def padded_update_flops(size: Size) -> float:
    """FLOPs of the baseline's updates: each sample encodes its own prompt, padded to the limit.

    Responses are padded too, and policy and critic both compute logits.
    """
    rows = size.prompts * size.samples
    prompts, answers = [size.input_limit] * rows, [[size.answer_tokens]] * rows
    passes = (
        forward_flops(dims, prompts, answers, logits=True) for dims in (size.policy, size.value)
    )
    return 3 * size.epochs * sum(passes)
