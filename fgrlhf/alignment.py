"""Text and tokens: the characters a token completes, and the token that carries a segment's reward.

`char_ends` is the only map between text and tokens, and `place_on_tokens` is the only function that
puts a segment's value on a token.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from os.path import commonprefix

import torch
from torch import Tensor

from fgrlhf.text_types import SegmentScore, Turn, turn_spans, turns_text
from fgrlhf.utils import check_shape

BLOCK = 16  # tokens whose ends are computed together
WINDOW = 2 * BLOCK  # a window that reaches this many tokens is shortened at its start
TRIES = 8  # candidates for the new start of a window


# ---- the characters a token completes ------------------------------------------------------------


def char_ends(tokenizer, ids: Sequence[int], lead: str = "") -> tuple[str, tuple[int, ...]]:
    """The decoded text, and the number of its characters that are complete after each token.

        ends[t] = max over s <= t of len(common prefix of decode(ids[: s + 1]) and decode(ids))

    With any tokenizer, a token that is half of a multi-byte character completes nothing, and a
    special token adds nothing. The ends never decrease, and the last one is len(text).

    Decoding every prefix would take quadratic time. Instead, the first tokens are dropped at a
    place where the text splits between two tokens (`_later_window`), so the time is linear in the
    number of tokens.

    Args:
      lead: what is no part of the text if the ids begin with it (`Policy.lead`).
    """
    n = lead_tokens(tokenizer, ids, lead)
    if n:
        text, ends = char_ends(tokenizer, ids[n:])
        return text, (*[0] * n, *ends)
    special = set(getattr(tokenizer, "all_special_ids", ()))
    text, plain_ends = _ends_of_plain_tokens(tokenizer, [i for i in ids if i not in special])
    next_end = iter(plain_ends)
    end = 0
    ends = []
    for i in ids:
        if i not in special:
            end = next(next_end)
        ends.append(end)
    return text, tuple(ends)


def lead_tokens(tokenizer, ids: Sequence[int], lead: str) -> int:
    """The number of tokens that write a lead, special tokens included; 0 if the ids have none."""
    for n in range(1, min(len(lead), len(ids)) + 1):
        beginning = tokenizer.decode(
            ids[:n], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        if beginning == lead:
            return n
        if not lead.startswith(beginning):
            return 0
    return 0


def _ends_of_plain_tokens(tokenizer, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """`char_ends` for ids without special tokens.

    Only a window of tokens is decoded for each end: those from `start` up to the token itself. The
    whole prefix decodes to `before` + the text of that window.
    """
    if not ids:
        return "", ()
    text = _decode_rows(tokenizer, [ids])[0]
    start = 0
    before = ""
    end = 0
    ends = []
    last_window = ""
    for block in range(0, len(ids), BLOCK):
        if block - start >= WINDOW:
            start, before = _later_window(tokenizer, ids[:block], start, before, text)
        stop = min(block + BLOCK, len(ids))
        windows = _decode_rows(tokenizer, [ids[start : t + 1] for t in range(block, stop)])
        for window in windows:
            text_there = text[len(before) : len(before) + len(window)]
            end = max(end, len(before) + _common_length(window, text_there))
            ends.append(end)
        last_window = windows[-1]
    if before + last_window != text:  # the text does not split where it seemed to
        return _ends_of_prefixes(tokenizer, ids)
    return text, tuple(ends)


def _common_length(a: str, b: str) -> int:
    """The length of the common prefix of two texts. They are equal as a rule."""
    return len(a) if a == b else len(commonprefix([a, b]))


def _later_window(
    tokenizer, ids: Sequence[int], start: int, before: str, text: str
) -> tuple[int, str]:
    """A later (start, before) with which `ids` decode to the same text, or the given pair.

    The text splits at token m if the tokens start .. m - 1 and m .. end, decoded separately and
    joined, give the text that they give together. Some tokenizers drop a space between the two. At
    least BLOCK tokens follow m, so tokens after `ids` do not change the text before m.
    """
    whole = _decode_rows(tokenizer, [ids[start:]])[0]
    latest = len(ids) - BLOCK
    for m in range(latest, max(latest - TRIES, start), -1):
        left, right = _decode_rows(tokenizer, [ids[start:m], ids[m:]])
        for space in ("", " "):
            new_before = before + left + space
            splits = bool(right) and whole == left + space + right
            if splits and text.startswith(new_before):
                return m, new_before
    return start, before


def _ends_of_prefixes(tokenizer, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """`char_ends` by its definition: decode every prefix."""
    prefixes = _decode_rows(tokenizer, [ids[: t + 1] for t in range(len(ids))])
    text = prefixes[-1] if prefixes else ""
    end = 0
    ends = []
    for prefix in prefixes:
        end = max(end, _common_length(prefix, text))
        ends.append(end)
    return text, tuple(ends)


def texts_of(tokenizer, rows: Sequence[Sequence[int]], lead: str = "") -> list[str]:
    """The text of each row of token ids, without special tokens; the same text as `char_ends`."""
    special = set(getattr(tokenizer, "all_special_ids", ()))
    kept = []
    for ids in rows:
        text_ids = ids[lead_tokens(tokenizer, ids, lead) :]
        kept.append([i for i in text_ids if i not in special])
    return _decode_rows(tokenizer, kept)


def _decode_rows(tokenizer, rows: Sequence[Sequence[int]]) -> list[str]:
    return tokenizer.batch_decode(rows, skip_special_tokens=True)


def decode(
    tokenizer,
    response_ids_BT: Tensor,
    response_mask_BT: Tensor,
    lead: str = "",
    turns: Sequence[Sequence[Turn]] | None = None,
) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """The texts exactly as reward models read them, and the `char_ends` of each.

    Args:
      turns: of each response, if it is the policy's part of a conversation. The text has a line for
        each turn (`turns_text`), and the line break is complete with the turn's last token.

    Raises:
      ValueError: ids and mask have different shapes.
    """
    check_shape("response_mask_BT", response_mask_BT, tuple(response_ids_BT.shape))
    texts = []
    ends = []
    lengths = response_mask_BT.sum(1).tolist()
    for b, (ids, length) in enumerate(zip(response_ids_BT.tolist(), lengths)):
        if turns is None:
            text, ends_of_text = char_ends(tokenizer, ids[: int(length)], lead)
        else:
            text, ends_of_text = (
                turns_text(turns[b]),
                _ends_of_turns(tokenizer, ids, turns[b], lead),
            )
        texts.append(text)
        ends.append(ends_of_text)
    return tuple(texts), tuple(ends)


def _ends_of_turns(
    tokenizer, ids: Sequence[int], turns: Sequence[Turn], lead: str
) -> tuple[int, ...]:
    """`char_ends` of a response in turns."""
    ends: list[int] = []
    token = 0
    for turn, (start, end) in zip(turns, turn_spans(turns)):
        _, ends_of_turn = char_ends(tokenizer, ids[token : token + turn.n_tokens], lead)
        ends += [start + n for n in ends_of_turn]
        if end is not None:
            ends[-1] = end
        token += turn.n_tokens
    return tuple(ends)


# ---- the token that carries a segment's reward ---------------------------------------------------


def place_on_tokens(
    segments: Sequence[Sequence[SegmentScore] | None],
    char_ends: Sequence[Sequence[int]],
    mask_BT: Tensor,
) -> Tensor:
    """rewards_BT: each segment's value on the first token that completes its last character.

    A segment with `end=None`, or one that no token completes, goes to the response's last real
    token. Nothing is lost: the sum over tokens is the sum over segments.

    Args:
      segments: of each response; None: the reward does not apply to it.
      char_ends: of each response, one entry per real token.
      mask_BT: 1 on real tokens.

    Raises:
      ValueError: the arguments do not describe the same responses, or a response without tokens has
        segments.
    """
    lengths = _checked_lengths(segments, char_ends, mask_BT)
    rewards_BT = torch.zeros(mask_BT.shape, dtype=torch.float32)
    for b, scores in enumerate(segments):
        for score in scores or ():
            rewards_BT[b, _token_of(score, char_ends[b], lengths[b])] += score.value
    return rewards_BT.to(mask_BT.device)


def segments_before(
    segments: Sequence[Sequence[SegmentScore] | None],
    char_ends: Sequence[Sequence[int]],
    mask_BT: Tensor,
) -> Tensor:
    """index_BT: how many segments of the response were complete when token t was sampled.

    It never decreases along a row. Arguments and errors are those of `place_on_tokens`.
    """
    lengths = _checked_lengths(segments, char_ends, mask_BT)
    count_BT = torch.zeros(mask_BT.shape, dtype=torch.long)
    for b, scores in enumerate(segments):
        for score in scores or ():
            token = _token_of(score, char_ends[b], lengths[b])
            count_BT[b, token + 1 :] += 1
    return count_BT.to(mask_BT.device)


def segment_starts(
    by_aspect: Iterable[Sequence[Sequence[SegmentScore] | None]],
    char_ends: Sequence[Sequence[int]],
    mask_BT: Tensor,
) -> Tensor:
    """starts_BT: true on the first token, and wherever a segment of an aspect has just ended.

    Args:
      by_aspect: the segments of each aspect, as in `segments_before`.
    """
    starts_BT = torch.zeros_like(mask_BT, dtype=torch.bool)
    starts_BT[:, 0] = True
    for segments in by_aspect:
        index_BT = segments_before(segments, char_ends, mask_BT)
        starts_BT[:, 1:] |= index_BT[:, 1:] > index_BT[:, :-1]
    return starts_BT & mask_BT.bool()


def _token_of(score: SegmentScore, ends: Sequence[int], length: int) -> int:
    """The first token that completes the segment's last character, else the last real token."""
    last = length - 1
    if score.end is None:
        return last
    return min(bisect_left(ends, score.end), last)


def _checked_lengths(
    segments: Sequence[Sequence[SegmentScore] | None],
    char_ends: Sequence[Sequence[int]],
    mask_BT: Tensor,
) -> list[int]:
    """The number of real tokens of each response. Raises `ValueError` as `place_on_tokens` does."""
    check_shape("mask_BT", mask_BT, (None, None))
    for name, rows in (("segments", segments), ("char_ends", char_ends)):
        if len(rows) != len(mask_BT):
            raise ValueError(
                f"{name} has {len(rows)} responses, but mask_BT has shape {tuple(mask_BT.shape)}"
            )
    lengths = [int(length) for length in mask_BT.sum(1).tolist()]
    for b, (scores, ends, length) in enumerate(zip(segments, char_ends, lengths)):
        if len(ends) != length:
            raise ValueError(
                f"char_ends[{b}] has {len(ends)} entries, but response {b} has {length} tokens"
            )
        if scores and length == 0:
            raise ValueError(f"response {b} has no tokens but {len(scores)} scored segments")
    return lengths
