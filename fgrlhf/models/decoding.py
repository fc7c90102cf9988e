"""Sampling responses token by token, from any model that provides a `Steps` object.

top_k, top_p and min_p leave a set S of tokens, the support, and samples come from

    pi_S(a | x) = pi(a | x) / sum_(v in S) pi(v | x)    for a in S, else 0

Under samples of pi_S, E[grad log pi_S] is 0, but E[grad log pi] is not: the policy gradient then
has a part that does not depend on the rewards. An update changes the tokens that these
would leave, so S is recorded while sampling and stays the same in every epoch (arXiv 2512.02556,
section 3.1).

min_new_tokens and no_repeat_ngram_size forbid tokens because of those before them. They are part of
the policy: log-probabilities are always normalised over what they allow, which is recorded in the
same way.

repetition_penalty is part of the policy too. With the penalty p, the logit z_v of a token v that is
among the tokens before becomes

    z_v / p    if z_v > 0,    else p z_v

(Keskar et al. 2019, arXiv 1909.05858; the second case is that of transformers). The tokens before
are all that the language model continues: the prompt of a decoder-only model, the start of the
decoder of others (`Policy.read_before`), and the response so far. That is how transformers and
vLLM count too. But transformers also counts the padding of a batch, which often is the
end-of-sequence token: then a response ends later if its prompt is shorter than another one.
Here padding never counts.

N: tokens of responses. S: positions of a prompt and its response. W: the bytes of a recorded set, a
bit per token: token v is bit v % 8 of byte v // 8.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fgrlhf.configs.sections import Sampling
from fgrlhf.types import Response

# How many of the most probable tokens `draw` sorts: at first, and for rows in which these do not
# suffice. After that it sorts the whole vocabulary.
CANDIDATES = (16, 256, 2048)
BLOCK = 8  # tokens of a block in `likeliest`
# The logit of a token that is excluded: finite, because the entropy would compute 0 * inf for an
# infinite one, but so low that its probability is 0.
EXCLUDED = -1e9
NO_TOKEN = -1  # in place of a token that is not read


class Steps(Protocol):
    """A batch of B responses that a model continues token by token.

    After `keep`, B is the number of rows that were kept.
    """

    def first(self) -> Tensor:
        """hidden_BD from which the first token of every response is predicted."""
        ...

    def next(self, ids_B: Tensor) -> Tensor:
        """hidden_BD from which the token after `ids_B` is predicted."""
        ...

    def keepable(self, live_B: Tensor) -> Tensor:
        """Indices of the rows that must be kept so that no live row is lost."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows."""
        ...


def uniform_rows(row_seeds: Sequence[int], length: int) -> Tensor:
    """uniform_BT in [0, 1): row b is a pure function of `row_seeds[b]`."""
    rows = [torch.rand(length, generator=torch.Generator().manual_seed(seed)) for seed in row_seeds]
    return torch.stack(rows) if rows else torch.zeros(0, length)


def uniform_numbers(sampling: Sampling, row_seeds: Sequence[int] | None, B: int) -> Tensor:
    """uniform_BT for `decode`; greedy decoding reads none of them."""
    if not sampling.do_sample:
        return torch.zeros(B, sampling.max_new_tokens)
    if row_seeds is None or len(row_seeds) != B:
        raise ValueError("sampling needs one seed per response")
    return uniform_rows(row_seeds, sampling.max_new_tokens)


def likeliest(scores_BV: Tensor, C: int) -> tuple[Tensor, Tensor]:
    """The C largest scores of each row, in descending order, and their ids: (scores_BC, ids_BC).

    As `torch.topk`, which looks at scores one by one. The C largest lie in the C blocks with the
    largest maxima, which take one vectorised pass: a block has `BLOCK` scores at equal distances M,
    so score v is in block v % M. On a GPU, `torch.topk` is fast.

    Equal scores come in an order that depends on their row alone.
    """
    M = scores_BV.shape[-1] // BLOCK
    if scores_BV.device.type != "cpu" or 4 * C > M:
        return torch.topk(scores_BV, C, dim=-1)
    blocks_BKM = scores_BV[:, : BLOCK * M].unflatten(1, (BLOCK, M))
    block_BKC = blocks_BKM.amax(1).topk(C, sorted=False).indices[:, None].expand(-1, BLOCK, -1)
    first_K1 = M * torch.arange(BLOCK)[:, None]
    rest_BR = scores_BV[:, BLOCK * M :]  # tokens that fill no block
    rest_ids_BR = torch.arange(BLOCK * M, scores_BV.shape[-1]).expand_as(rest_BR)
    candidates_BN = torch.cat([blocks_BKM.gather(2, block_BKC).flatten(1), rest_BR], 1)
    candidate_ids_BN = torch.cat([(first_K1 + block_BKC).flatten(1), rest_ids_BR], 1)
    scores_BC, places_BC = candidates_BN.topk(C)
    return scores_BC, candidate_ids_BN.gather(1, places_BC)


def draw(
    logits_BV: Tensor,
    sampling: Sampling,
    uniform_B: Tensor,
    logsumexp_B: Tensor | None = None,
    support_BV: Tensor | None = None,
) -> Tensor:
    """ids_B, one token per row.

    The tokens are sorted by descending probability. The drawn token is the first one whose
    cumulative probability exceeds u * s: u is the row's number in `uniform_B`, and s the total
    probability of the tokens that top_k, top_p and min_p allow.

    So a sample depends only on its own number, not on the rows of its batch, the process or the
    device's random state. A data-parallel run draws the same samples as a single process, and a
    resumed run the same as an uninterrupted one.

    Sorting a whole vocabulary takes longer than some models take to compute its logits. The drawn
    token is almost always among the first, so only these are sorted, and more of them only for the
    rows that need more.

    Args:
      logsumexp_B: of the logits divided by the sampling's temperature, if it is known.
      support_BV: of bools; the tokens that could be drawn are written to it.
    """
    if not sampling.do_sample:
        return logits_BV.argmax(-1)
    V = logits_BV.shape[-1]
    logits_BV = _divided(logits_BV.float(), sampling.temperature)
    uniform_B = uniform_B.to(logits_BV)
    if sampling.top_k and sampling.top_k < V:
        logits_BC, ids_BC = likeliest(logits_BV, sampling.top_k)
        probs_BC = torch.softmax(logits_BC, -1)
        choice_B, _, in_set_BC = _choose(probs_BC, sampling, uniform_B, True)
        if support_BV is not None:
            support_BV.zero_().scatter_(-1, ids_BC, in_set_BC)
        return ids_BC.gather(-1, choice_B[:, None])[:, 0]

    if logsumexp_B is None:
        logsumexp_B = logits_BV.logsumexp(-1)
    drawn_B = torch.zeros_like(logits_BV[:, 0], dtype=torch.long)
    open_rows = torch.arange(len(logits_BV), device=logits_BV.device)
    # R: the open rows; at first all B
    logits_RV, logsumexp_R, uniform_R = logits_BV, logsumexp_B, uniform_B
    for C in (*CANDIDATES, V):
        C = min(C, V)
        logits_RC, ids_RC = likeliest(logits_RV, C)
        probs_RC = torch.exp(logits_RC - logsumexp_R[:, None])
        choice_R, decided_R, in_set_RC = _choose(probs_RC, sampling, uniform_R, C == V)
        # The next round replaces the token of a row that is not decided. Selecting the decided rows
        # here would make the program wait for the GPU.
        drawn_B[open_rows] = ids_RC.gather(-1, choice_R[:, None])[:, 0]
        if support_BV is not None:
            everything_RV = torch.zeros_like(logits_RV, dtype=torch.bool)
            support_BV[open_rows] = everything_RV.scatter_(-1, ids_RC, in_set_RC)
        open_rows = open_rows[~decided_R]
        if len(open_rows) == 0:
            break
        logits_RV, logsumexp_R = logits_BV[open_rows], logsumexp_B[open_rows]
        uniform_R = uniform_B[open_rows]
    return drawn_B


def _divided(logits_BV: Tensor, temperature: float) -> Tensor:
    """The logits divided by the temperature; at 1 they are not copied."""
    return logits_BV if temperature == 1 else logits_BV / temperature


def _choose(
    probs_BC: Tensor, sampling: Sampling, uniform_B: Tensor, is_everything: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw among the C most probable tokens.

    Args:
      probs_BC: their probabilities, in descending order.
      is_everything: whether no other token can be drawn.

    Returns:
      choice_B, an index into the candidates; decided_B, whether C candidates were enough; and
      in_set_BC, which of them could be drawn.
    """
    cumulative_BC = probs_BC.cumsum(-1)
    in_set_BC = torch.ones_like(probs_BC, dtype=torch.bool)
    reached_B = cumulative_BC[:, -1]  # the probability of all candidates together
    # Instead of normalising the probabilities of the tokens that may be drawn, scale the random
    # number to their sum: target_B.
    if sampling.top_p is None and sampling.min_p is None:
        # The sum is 1 over the vocabulary, or that of the candidates if no other may be drawn.
        sum_B = reached_B if is_everything else torch.ones_like(reached_B)
        target_B = uniform_B * sum_B
        decided_B = reached_B > target_B
    else:
        cumulative_BC = _cumulative_in_set(probs_BC, sampling)
        in_set_BC = cumulative_BC > 0
        target_B = uniform_B * cumulative_BC.amax(-1)
        decided_B = _has_whole_set(probs_BC, sampling)
    choice_B = (cumulative_BC > target_B[:, None]).int().argmax(-1)
    return choice_B, decided_B | is_everything, in_set_BC


def _cumulative_in_set(probs_BC: Tensor, sampling: Sampling) -> Tensor:
    """Cumulative probabilities of the tokens that are allowed, in descending order; 0 elsewhere.

    top_p allows the smallest set whose probability reaches it: everything before a member is less.
    min_p allows the tokens with at least this share of the largest probability (Nguyen et al. 2024,
    arXiv 2407.01082). Of both, the smaller set remains.
    """
    cumulative_BC = probs_BC.cumsum(-1)
    in_set_BC = torch.ones_like(probs_BC, dtype=torch.bool)
    if sampling.top_p is not None:
        in_set_BC &= cumulative_BC - probs_BC < sampling.top_p
    if sampling.min_p is not None:
        in_set_BC &= probs_BC >= sampling.min_p * probs_BC[..., :1]
    return torch.where(in_set_BC, cumulative_BC, cumulative_BC.new_zeros(()))


def _has_whole_set(probs_BC: Tensor, sampling: Sampling) -> Tensor:
    """Whether all tokens that top_p and min_p allow are among the candidates of a row."""
    has_all_B = torch.zeros_like(probs_BC[:, 0], dtype=torch.bool)
    if sampling.top_p is not None:
        has_all_B |= probs_BC.sum(-1) >= sampling.top_p
    if sampling.min_p is not None:
        has_all_B |= probs_BC[:, -1] < sampling.min_p * probs_BC[:, 0]
    return has_all_B


def log_kept_mass(logits_NV: Tensor, sampling: Sampling) -> Tensor:
    """log_kept_mass_N, the log of the total probability of the tokens that sampling keeps.

        log_kept_mass = log sum_(v in S) p_v,   p = softmax(z / tau)

    S has the top_k most probable tokens and, of these, the smallest set that has the share top_p of
    their probability, without those that min_p leaves out. The distribution from which `draw`
    samples is p_v / exp(log_kept_mass) in S.
    """
    logits_NV = logits_NV.float() / sampling.temperature
    total_N = logits_NV.logsumexp(-1)
    if 0 < sampling.top_k < logits_NV.shape[-1]:
        logits_NV, _ = likeliest(logits_NV, sampling.top_k)
    log_kept_mass_N = logits_NV.logsumexp(-1) - total_N
    if sampling.top_p is not None or sampling.min_p is not None:
        log_kept_mass_N += _share_in_set(torch.softmax(logits_NV, -1), sampling).log()
    return log_kept_mass_N


def _share_in_set(probs_NC: Tensor, sampling: Sampling) -> Tensor:
    """share_N, the total probability of the tokens that top_p and min_p allow.

    Like `draw`, it sorts more tokens only for the rows that need them.
    """
    C = probs_NC.shape[-1]
    share_N = torch.zeros_like(probs_NC[:, 0])
    open_rows = torch.arange(len(probs_NC), device=probs_NC.device)
    for candidates in (*CANDIDATES, C):
        probs_RC, _ = likeliest(probs_NC[open_rows], min(candidates, C))
        share_N[open_rows] = _cumulative_in_set(probs_RC, sampling).amax(-1)
        open_rows = open_rows[~_has_whole_set(probs_RC, sampling)]
        if len(open_rows) == 0 or candidates >= C:
            break
    return share_N


def allowed_next(ids_BT: Tensor, V: int, sampling: Sampling, eos_ids: Sequence[int]) -> Tensor:
    """allowed_BV of bools: the tokens that may follow, whatever their probability.

    Args:
      ids_BT: the tokens of the responses so far. The prompt may be repeated.
      V: the size of the vocabulary.
      sampling: `min_new_tokens` forbids the end while there are fewer, and `no_repeat_ngram_size`
        = n the token that would complete n tokens which the response has already.
    """
    B, T = ids_BT.shape
    allowed_BV = torch.ones(B, V, dtype=torch.bool, device=ids_BT.device)
    if sampling.min_new_tokens > T:
        allowed_BV[:, list(eos_ids)] = False
    n = sampling.no_repeat_ngram_size
    if n and n <= T:
        grams_BTn = ids_BT.unfold(1, n, 1)
        begins_alike_BT = (grams_BTn[..., :-1] == ids_BT[:, None, T - n + 1 :]).all(-1)
        rows, places = begins_alike_BT.nonzero(as_tuple=True)
        allowed_BV[rows, grams_BTn[rows, places, -1]] = False
    return allowed_BV


def without_padding(ids: Tensor, mask: Tensor) -> Tensor:
    """The ids, with NO_TOKEN where the mask is 0."""
    return ids.masked_fill(mask == 0, NO_TOKEN)


def penalize_repetitions(logits_NV: Tensor, before_NS: Tensor, penalty: float) -> Tensor:
    """The logits with those of repeated tokens changed (the equation above).

    Args:
      before_NS: the tokens before each; NO_TOKEN counts as none.
    """
    N, V = logits_NV.shape
    # column V takes what is no token, and ids that the model reads but cannot say
    columns_NS = before_NS.where((before_NS >= 0) & (before_NS < V), V)
    is_before = torch.zeros(N, V + 1, dtype=torch.bool, device=logits_NV.device)
    is_before_NV = is_before.scatter_(-1, columns_NS, True)[:, :V]
    factor_NV = torch.where(logits_NV.detach() > 0, 1 / penalty, penalty)
    return logits_NV * factor_NV.where(is_before_NV, 1.0)


@dataclass(frozen=True)
class Repetitions:
    """The tokens before each of N tokens of responses, of which a slice can be taken.

    Args:
      ids_BS: prompt (or what else is read before) and response of each row.
      row_N: the row of each token.
      count_N: how many of the row's tokens are before it.
    """

    penalty: float
    ids_BS: Tensor
    row_N: Tensor
    count_N: Tensor

    @classmethod
    def of_responses(
        cls, penalty: float, before_BP: Tensor, response_ids_BT: Tensor, real_BT: Tensor
    ) -> "Repetitions":
        """Of the real tokens of responses, row by row; `before_BP` is read before them."""
        row_N, time_N = real_BT.nonzero(as_tuple=True)
        ids_BS = torch.cat([before_BP, response_ids_BT], 1)
        return cls(penalty, ids_BS, row_N, before_BP.shape[1] + time_N)

    def __getitem__(self, part: slice) -> "Repetitions":
        return Repetitions(self.penalty, self.ids_BS, self.row_N[part], self.count_N[part])

    def penalized(self, logits_NV: Tensor) -> Tensor:
        """`penalize_repetitions` of the tokens' logits."""
        ids_NS = self.ids_BS[self.row_N]
        places_S = torch.arange(ids_NS.shape[1], device=ids_NS.device)
        is_before_NS = places_S < self.count_N[:, None]
        return penalize_repetitions(logits_NV, without_padding(ids_NS, is_before_NS), self.penalty)


def packed(support_NV: Tensor) -> Tensor:
    """support_NW of bytes, from one bool per token."""
    missing = -support_NV.shape[-1] % 8
    bits_NV = torch.nn.functional.pad(support_NV.to(torch.uint8), (0, missing))
    return (bits_NV.unflatten(-1, (-1, 8)) << _places(bits_NV)).sum(-1, dtype=torch.uint8)


def unpacked(support_NW: Tensor, vocabulary: int) -> Tensor:
    """support_NV of bools: the inverse of `packed`."""
    bits_NV = ((support_NW[..., None] >> _places(support_NW)) & 1).flatten(-2)
    return bits_NV[..., :vocabulary].bool()


def _places(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)


def response_mask(response_ids_BT: Tensor, eos_ids: Sequence[int]) -> Tensor:
    """mask_BT: 1 up to and including each row's first end-of-sequence token, then 0.

    A row without such a token was cut at the length limit; its mask is 1 everywhere.
    """
    eos = torch.tensor(list(eos_ids), device=response_ids_BT.device)
    is_eos_BT = torch.isin(response_ids_BT, eos).int()
    ended_before_BT = is_eos_BT.cumsum(1) - is_eos_BT
    return (ended_before_BT == 0).long()


def _draw_next(
    logits_RV: Tensor,
    before_RS: Tensor | None,
    so_far_RT: Tensor,
    sampling: Sampling,
    uniform_R: Tensor,
    eos_ids: Sequence[int],
    temperature: float,
    given_R: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Draw the token that continues each response; `decode` explains the arguments.

    Args:
      before_RS: what each response continues; None: without a repetition penalty.
      so_far_RT: the tokens of the responses before it.

    Returns:
      drawn_R; logprobs_R, its log-probability; and support_RV, the tokens over which this is
      normalised (None: the vocabulary).
    """
    allowed_RV = kept_RV = None
    if before_RS is not None:
        read_RS = torch.cat([before_RS, so_far_RT], 1)
        logits_RV = penalize_repetitions(logits_RV, read_RS, sampling.repetition_penalty)
    if sampling.is_constrained:
        allowed_RV = allowed_next(so_far_RT, logits_RV.shape[-1], sampling, eos_ids)
        logits_RV = logits_RV.masked_fill(~allowed_RV, EXCLUDED)
    scaled_RV = _divided(logits_RV, temperature)
    logsumexp_R = scaled_RV.logsumexp(-1)
    known_R = logsumexp_R if sampling.temperature == temperature else None
    if sampling.with_support and sampling.is_truncated:
        kept_RV = torch.zeros_like(logits_RV, dtype=torch.bool)
    drawn_R = draw(logits_RV, sampling, uniform_R, known_R, kept_RV)
    support_RV = allowed_RV if kept_RV is None else kept_RV
    if kept_RV is not None and allowed_RV is not None:
        support_RV = kept_RV & allowed_RV  # top_k keeps forbidden tokens if others are too few
    if given_R is not None:
        drawn_R = torch.where(given_R >= 0, given_R, drawn_R)
    if support_RV is not None:
        logsumexp_R = scaled_RV.masked_fill(~support_RV, EXCLUDED).logsumexp(-1)
    logprobs_R = scaled_RV.gather(-1, drawn_R[:, None])[:, 0] - logsumexp_R
    return drawn_R, logprobs_R, support_RV


@torch.no_grad()
def decode(
    steps: Steps,
    project: Callable[[Tensor], Tensor],
    sampling: Sampling,
    uniform_BT: Tensor,
    eos_ids: Sequence[int],
    pad_id: int,
    temperature: float = 1.0,
    given_BT: Tensor | None = None,
    before_BS: Tensor | None = None,
) -> Response:
    """Draw one response per row of `uniform_BT`.

    Args:
      steps: the model's decoding steps, for the same rows.
      project: hidden states -> logits.
      uniform_BT: random numbers in [0, 1), one per token; T is the length limit.
      eos_ids: tokens that end a response.
      pad_id: token after the end of a response.
      temperature: of the returned log-probabilities (models/base.py), not of the sampling.
      given_BT: tokens that are not drawn but taken from here; -1: drawn.
      before_BS: what each response continues; None: without `sampling.repetition_penalty`.

    With `sampling.with_support` and top_k, top_p or min_p, and whenever tokens are forbidden
    (`allowed_next`), the response has the tokens that could be drawn (`support_BTW`), and the
    log-probabilities are normalised over these.
    """
    B, T = uniform_BT.shape
    supports = []
    hidden_RD = steps.first()
    device = hidden_RD.device
    uniform_BT = uniform_BT.to(device)
    eos = torch.tensor(list(eos_ids), device=device)
    ids_BT = torch.full((B, T), pad_id, device=device)
    logprobs_BT = torch.zeros(B, T, device=device)
    # R: rows that are still in the model's batch; at first all B. `rows_R` are their indices in the
    # results, `live_R` whether they are unfinished.
    rows_R = torch.arange(B, device=device)
    live_R = torch.ones(B, dtype=torch.bool, device=device)
    length = T
    for t in range(T):
        logits_RV = project(hidden_RD).float()
        given_R = None if given_BT is None else given_BT[rows_R, t]
        drawn_R, logprobs_R, support_RV = _draw_next(
            logits_RV,
            None if before_BS is None else before_BS[rows_R],
            ids_BT[rows_R, :t],
            sampling,
            uniform_BT[rows_R, t],
            eos_ids,
            temperature,
            given_R,
        )
        if support_RV is not None:
            supports.append(_packed_of_live(support_RV, live_R, rows_R, B))
        ids_R = torch.where(live_R, drawn_R, pad_id)
        ids_BT[rows_R, t] = ids_R
        # not `logprobs_R * live_R`: that of a finished row may be -inf, and 0 * -inf is NaN
        logprobs_BT[rows_R, t] = torch.where(live_R, logprobs_R, 0.0)
        live_R = live_R & ~torch.isin(ids_R, eos)
        kept_rows = steps.keepable(live_R)
        if len(kept_rows) == 0 or t + 1 == T:
            length = t + 1
            break
        if len(kept_rows) <= 0.75 * len(rows_R):  # a smaller cache is worth the cost of copying it
            steps.keep(kept_rows)
            rows_R = rows_R[kept_rows]
            live_R = live_R[kept_rows]
            ids_R = ids_R[kept_rows]
        hidden_RD = steps.next(ids_R)
    mask_BT = response_mask(ids_BT[:, :length], eos_ids)
    support_BTW = torch.stack(supports, 1) if supports else None
    return _without_trailing_padding(ids_BT, mask_BT, logprobs_BT, support_BTW)


def _packed_of_live(support_RV: Tensor, live_R: Tensor, rows_R: Tensor, B: int) -> Tensor:
    """support_BW of one token: that of the unfinished rows, `packed`, and 0 in the others."""
    support_RW = packed(support_RV) * live_R[:, None]
    support_BW = support_RW.new_zeros(B, support_RW.shape[-1])
    return support_BW.index_copy(0, rows_R, support_RW)


def _without_trailing_padding(
    ids_BT: Tensor, mask_BT: Tensor, logprobs_BT: Tensor, support_BTW: Tensor | None
) -> Response:
    """The responses, cut after the last token of the longest; one token at least."""
    longest = max(int(mask_BT.sum(1).max()), 1) if len(mask_BT) else 1
    return Response(
        ids_BT[:, :longest],
        mask_BT[:, :longest],
        logprobs_BT[:, :longest],
        support_BTW=None if support_BTW is None else support_BTW[:, :longest],
    )
