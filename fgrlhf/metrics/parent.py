"""PARENT: how well a text agrees with a table and with references (Dhingra et al. 2019)."""

from collections import Counter
from collections.abc import Sequence
from math import prod

from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.metrics.base import NamedMetric

SMOOTHING = 1e-5  # replaces precisions and recalls of 0, as in the evaluation of ToTTo
ORDERS = (1, 2, 3, 4)


def parent(text: str, references: Sequence[str], table: str, records: Sequence[str]) -> float:
    """The F-measure in points (0-100), for the best reference.

    w(g) is the share of the words of an n-gram g that are in the table; #p and #r count g in the
    text and in a reference; ^1/4 is the geometric mean over n = 1 to 4.

        P = (sum_g #p [m + (1 - m) w] / sum_g #p)^1/4     m = min(1, #r / #p)
        R = R_r^(1 - k) R_t^k
        R_r = (sum_g #r w min(1, #p / #r) / sum_g #r w)^1/4
        R_t = mean over records of LCS(record, text) / words of the record
        k = 1 - mean over records of LCS(record, reference) / words of the record

    Args:
      table: all text of the table, which may support what the text says.
      records: the values that the text should mention.

    Raises:
      ValueError: no record has a word.
    """
    known = set(words_of(table))
    values = [words for words in map(words_of, records) if words]
    if not values:
        raise ValueError("PARENT needs a record with a word")
    said = words_of(text)
    mentioned = share_mentioned(values, said) or SMOOTHING
    scores = [0.0]
    for reference in map(words_of, references):
        precision = geometric_mean([_precision(said, reference, known, n) for n in ORDERS])
        recall = geometric_mean([_recall(said, reference, known, n) for n in ORDERS]) or SMOOTHING
        weight = 1 - share_mentioned(values, reference)
        recall = recall ** (1 - weight) * mentioned**weight
        scores.append(2 * precision * recall / (precision + recall))
    return 100 * max(scores)


class Parent(NamedMetric):
    """PARENT of each response.

    The prompts' rows have the texts `table` and `records`, a list. It does not apply to prompts
    without references, or without one of the two.
    """

    def columns(self, prompts, texts):
        rows = []
        for prompt, text in zip(prompts, texts, strict=True):
            value = None
            table, records = prompt.meta.get("table"), prompt.meta.get("records")
            if prompt.references and table and records:
                if not isinstance(table, str) or isinstance(records, str):
                    raise UserError(
                        f"parent: prompt {shorten(prompt.id, 60)} must have `table` as a text and"
                        " `records` as a list of texts: correct the file of prompts"
                    )
                value = parent(text, prompt.references, table, records)
            rows.append({self.column: value})
        return rows


def words_of(text: str) -> list[str]:
    return Tokenizer13a()(text.strip().lower()).split()


def geometric_mean(shares: Sequence[float]) -> float:
    """0 if no single word fits; for longer n-grams, 0 becomes `SMOOTHING`."""
    first, *others = shares
    return prod([first, *(share or SMOOTHING for share in others)]) ** (1 / len(shares))


def _precision(said: list[str], reference: list[str], known: set[str], n: int) -> float:
    found = counts(reference, n)
    total = 0.0
    for ngram, count in counts(said, n).items():
        match = min(1.0, found[ngram] / count)
        total += count * (match + (1 - match) * support(ngram, known))
    return total / max(len(said) - n + 1, 1)


def _recall(said: list[str], reference: list[str], known: set[str], n: int) -> float:
    """1 if the table supports no n-gram of the reference, so there is nothing to say."""
    found = counts(said, n)
    weights = {ngram: support(ngram, known) for ngram in counts(reference, n)}
    total = sum(count * weights[ngram] for ngram, count in counts(reference, n).items())
    met = sum(min(count, found[g]) * weights[g] for g, count in counts(reference, n).items())
    return met / total if total else 1.0


def counts(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(n))))


def support(ngram: Sequence[str], known: set[str]) -> float:
    return sum(word in known for word in ngram) / len(ngram)


def share_mentioned(values: Sequence[list[str]], words: list[str]) -> float:
    """The mean share of a value's words that occur in the text, in the same order."""
    shares = [longest_common_subsequence(value, words) / len(value) for value in values]
    return sum(shares) / len(shares)


def longest_common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    lengths = [0] * (len(b) + 1)
    for word in a:
        above = lengths
        lengths = [0]
        for place, other in enumerate(b):
            longer = above[place] + 1 if word == other else max(above[place + 1], lengths[-1])
            lengths.append(longer)
    return lengths[-1]
