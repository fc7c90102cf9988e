"""Text and tokens: which characters a token completes, and which token carries a segment's reward."""

from bisect import bisect_left
from collections.abc import Sequence
from os.path import commonprefix

import torch
from torch import Tensor

from fgrlhf.types import SegmentScore

BLOCK = 16  # tokens whose ends are found together
WINDOW = 2 * BLOCK  # tokens that are decoded before the first of them can be left out
TRIES = 8  # places that are tried for the new beginning of a window


def char_ends(tokenizer, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """The decoded text and, for each token t, how many of its characters are complete once t is
    decoded.

    That is what the decoded prefix up to t has in common with the whole text, so it holds for any
    tokenizer: a token that is half of a multi-byte character completes nothing, a special token
      adds nothing. Never falls; the last entry
    is len(text).

    Not every prefix is decoded whole, which would take quadratic time: the first tokens are left
    out once the text splits at the first token that stays (`_settled`), so the time is linear in
    the number of tokens.
    """
    special = set(getattr(tokenizer, "all_special_ids", ()))
    text, ends = _ends_of_text(tokenizer, [i for i in ids if i not in special])
    following, reached, all_ends = iter(ends), 0, []
    for i in ids:
        reached = reached if i in special else next(following)
        all_ends.append(reached)
    return text, tuple(all_ends)


def _ends_of_text(tokenizer, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """`char_ends` of tokens that are no special ones."""
    text = _decoded(tokenizer, [ids])[0] if len(ids) > BLOCK else None
    ends, reached = [], 0
    start, before = (
        0,
        "",
    )  # tokens before `start` decode to `before`, the rest of a prefix to what follows
    for block in range(0, len(ids), BLOCK):
        stop = min(block + BLOCK, len(ids))
        if block - start >= WINDOW:
            start, before = _settled(tokenizer, ids[:block], start, before, text)
        tails = _decoded(tokenizer, [ids[start : t + 1] for t in range(block, stop)])
        text = tails[-1] if text is None else text  # a single block: its last prefix is all of it
        for tail in tails:
            following = text[len(before) : len(before) + len(tail)]
            common = len(tail) if tail == following else len(commonprefix([tail, following]))
            reached = max(reached, len(before) + common)
            ends.append(reached)
    if ids and before + tails[-1] != text:  # the tokenizer's text does not split where it seemed to
        return _ends_of_prefixes(tokenizer, ids)
    return text or "", tuple(ends)


def _settled(tokenizer, ids: Sequence[int], start: int, before: str, text: str) -> tuple[int, str]:
    """A later (start, before) for which the text of `ids` is the same; the given one where there is
    none.

    The text splits at token m if tokens start .. m and m .. end, decoded apart, are what they are
    decoded together; some tokenizers drop a space between. At least BLOCK tokens stand after m, so
    those to come do not change what is before it.
    """
    whole = _decoded(tokenizer, [ids[start:]])[0]
    first = len(ids) - BLOCK
    for m in range(first, max(first - TRIES, start), -1):
        left, right = _decoded(tokenizer, [ids[start:m], ids[m:]])
        for space in ("", " "):
            settled = before + left + space
            if right and whole == left + space + right and text.startswith(settled):
                return m, settled
    return start, before


def _ends_of_prefixes(tokenizer, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """`char_ends` as it is defined: every prefix is decoded."""
    prefixes = _decoded(tokenizer, [ids[: t + 1] for t in range(len(ids))])
    text = prefixes[-1] if prefixes else ""
    ends, reached = [], 0
    for prefix in prefixes:
        reached = max(reached, len(commonprefix([prefix, text])))
        ends.append(reached)
    return text, tuple(ends)


def _decoded(tokenizer, rows: Sequence[Sequence[int]]) -> list[str]:
    return tokenizer.batch_decode(rows, skip_special_tokens=True)


def decode(
    tokenizer, response_ids_BT: Tensor, response_mask_BT: Tensor
) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Texts exactly as reward models read them, and `char_ends` of each."""
    rows = [
        char_ends(tokenizer, ids[: int(n)])
        for ids, n in zip(response_ids_BT.tolist(), response_mask_BT.sum(1).tolist())
    ]
    return tuple(text for text, _ in rows), tuple(ends for _, ends in rows)


def _token_of(score: SegmentScore, ends: Sequence[int], last: int) -> int:
    """The first token with which the segment's last character is complete; else the last real
    one.
    """
    return last if score.end is None else min(bisect_left(ends, score.end), last)


def place_on_tokens(
    segments: Sequence[Sequence[SegmentScore] | None],
    char_ends: Sequence[Sequence[int]],
    mask_BT: Tensor,
) -> Tensor:
    """rewards_BT: each segment's value on the first token with which its last character is
    complete.

    A segment with `end=None`, or one that no token completes, goes to the response's last real
    token. Nothing is lost: sum over tokens = sum over segments. A response without real tokens can
    carry no reward, so it is refused.
    """
    rewards_BT = torch.zeros(mask_BT.shape, dtype=torch.float32)
    for b, (scores, ends, length) in enumerate(
        zip(segments, char_ends, mask_BT.sum(1).tolist(), strict=True)
    ):
        last = int(length) - 1
        if scores and last < 0:
            raise ValueError(f"response {b} has no tokens but {len(scores)} scored segments")
        for score in scores or ():
            rewards_BT[b, _token_of(score, ends, last)] += score.value
    return rewards_BT.to(mask_BT.device)


def segments_before(
    segments: Sequence[Sequence[SegmentScore] | None],
    char_ends: Sequence[Sequence[int]],
    mask_BT: Tensor,
) -> Tensor:
    """index_BT: how many of the response's segments were complete when token t was drawn; it never
    falls along a row.
    """
    count_BT = torch.zeros(mask_BT.shape, dtype=torch.long)
    for b, (scores, ends, length) in enumerate(
        zip(segments, char_ends, mask_BT.sum(1).tolist(), strict=True)
    ):
        for score in scores or ():
            count_BT[b, _token_of(score, ends, int(length) - 1) + 1 :] += 1
    return count_BT.to(mask_BT.device)
