"""Metrics that compare a response with one or more references, with sacrebleu.

ROUGE is in fgrlhf/evaluators.py, METEOR in fgrlhf/metrics/meteor.py.
"""

from collections.abc import Sequence
from functools import cache
from unicodedata import normalize

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.words import bleu_tokenizer, ter_tokenizer

BLEU_ORDER = 4


# ---- BLEU (Papineni et al. 2002) -----------------------------------------------------------------


def bleu(
    text: str, references: Sequence[str], tokenizer: str = "auto"
) -> tuple[float, list[float]]:
    """Sentence-level BLEU in points (0-100), and the counts for corpus-level BLEU.

    sacrebleu with signature case:mixed|eff:yes|tok:<tokenizer>|smooth:exp: orders for which a short
    text has no n-gram are skipped, precisions of 0 are smoothed (method 3 of Chen & Cherry 2014).

    Args:
      tokenizer: one of sacrebleu's, or "auto": by the script of the references
        (`bleu_tokenizer`), 13a for scripts with spaces.
    Returns:
      (score, counts), with the counts that `corpus_bleu` takes.
    """
    name = bleu_tokenizer(references) if tokenizer == "auto" else tokenizer
    score = _bleu(name).sentence_score(text, list(references))
    counts = [score.sys_len, score.ref_len, *score.counts, *score.totals]
    # for a text equal to its reference, rounding can give a score above 100
    return min(score.score, 100.0), [float(count) for count in counts]


@cache
def _bleu(tokenizer: str) -> BLEU:
    return BLEU(effective_order=True, tokenize=tokenizer)


def check_bleu_tokenizer(tokenizer: str) -> None:
    """Raise `UserError` if the tokenizer needs a package that is not installed."""
    try:
        if tokenizer != "auto":
            _bleu(tokenizer)
    except RuntimeError as error:
        reason = shorten(" ".join(str(error).split()), 300)
        raise UserError(
            f"bleu with tokenizer={tokenizer} cannot be computed: {reason} Or leave the tokenizer"
            " out: the script of the references then decides"
        ) from None


def corpus_bleu(counts: Sequence[float]) -> float:
    """Corpus-level BLEU in points, from summed counts.

        BLEU = min(1, exp(1 - r / c)) * exp(1/4 sum_n log(matches_n / ngrams_n))

    The signature is nrefs:var|case:mixed|eff:no|tok:<that of `bleu`>|smooth:exp.

    Args:
      counts: words c of the responses, words r of the closest references, matching n-grams for
        n = 1 to 4, n-grams of the responses for n = 1 to 4.
    """
    response_words, reference_words = counts[:2]
    score = BLEU.compute_bleu(
        correct=[int(count) for count in counts[2 : 2 + BLEU_ORDER]],
        total=[int(count) for count in counts[2 + BLEU_ORDER :]],
        sys_len=int(response_words),
        ref_len=int(reference_words),
        smooth_method="exp",
    )
    return min(score.score, 100.0)


# ---- chrF (Popovic 2015) -------------------------------------------------------------------------


def chrf(text: str, references: Sequence[str]) -> tuple[float, list[float]]:
    """chrF2 in points (0-100) for the best reference, and the counts for corpus-level chrF.

    sacrebleu with signature case:mixed|eff:yes|nc:6|nw:0|space:no: character n-grams for n = 1 to
    6 without white space; recall weighs twice as much as precision.

    Returns:
      (score, counts), with the counts that `corpus_chrf` takes.
    """
    metric = CHRF()
    # sacrebleu has no public function that returns the counts of one text
    (counts,) = metric._extract_corpus_statistics([text], [[reference] for reference in references])
    return metric._compute_f_score(counts), [float(count) for count in counts]


def corpus_chrf(counts: Sequence[float]) -> float:
    """Corpus-level chrF2 in points, from summed counts.

    Args:
      counts: for n = 1 to 6 three numbers: character n-grams of the responses, of the references,
        and n-grams that match.
    """
    return CHRF()._compute_f_score([int(count) for count in counts])


# ---- TER (Snover et al. 2006) --------------------------------------------------------------------


def ter(text: str, references: Sequence[str], tokenizer: str = "auto") -> tuple[float, list[float]]:
    """The translation edit rate in percent, and the counts for corpus-level TER.

        TER = 100 * edits to the closest reference / mean number of words of the references

    An edit inserts, deletes or replaces a word, or shifts a run of words; a long text can need more
    edits than the references have words. sacrebleu with signature
    case:lc|tok:tercom|norm:no|punct:yes|asian:no.

    Args:
      tokenizer: "tercom": words between spaces, as above; "asian": also Chinese characters
        are words (norm:yes|asian:yes); "char": every character is a word; "auto": by the script of
        the references (`ter_tokenizer`).
    Returns:
      (rate, counts), with the counts that `corpus_ter` takes.
    """
    name = ter_tokenizer(references) if tokenizer == "auto" else tokenizer
    if name == "char":
        text, *references = (" ".join(each.replace(" ", "")) for each in (text, *references))
    metric = TER(normalized=name == "asian", asian_support=name == "asian")
    # sacrebleu has no public function that returns the counts of one text
    (counts,) = metric._extract_corpus_statistics([text], [[reference] for reference in references])
    return metric._compute_score_from_stats(counts).score, [float(count) for count in counts]


def corpus_ter(counts: Sequence[float]) -> float:
    """Corpus-level TER in percent, from summed counts.

    Args:
      counts: edits, and mean numbers of words of the references.
    """
    return TER()._compute_score_from_stats(list(counts)).score


# ---- exact match ---------------------------------------------------------------------------------


def exact_match(text: str, references: Sequence[str]) -> float:
    """1 if the response equals a reference, else 0.

    Case matters. A run of white space equals one space; white space at either end is ignored.
    Composed and decomposed characters are equal (NFC).
    """
    words = normalize("NFC", text).split()
    return float(any(words == normalize("NFC", other).split() for other in references))
