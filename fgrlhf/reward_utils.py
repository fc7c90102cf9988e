"""Splits texts into sentences, sub-sentences and other segments, as character spans.

Both the preparation of reward-model files and scoring use it. The segmenters of the library are:

`multilingual`  rules for many languages and for chat text, see fgrlhf/segmentation.py. Words are
                those of fgrlhf/words.py. It is the default.
a spaCy pipeline
                as in the published code: spaCy finds the sentences, and white space separates
                words. Within a sentence, a sub-sentence may begin after a word that ends in one of
                `, ; ! ?`, see `fgrlhf.segmentation.clause_starts`. `published` selects one.

A task may add its own (`Task.segmenters`): a function finds the sentences, and the rest is as with
a pipeline. Files of others can name only what the user's task has.
"""

import hashlib
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, entry_points
from importlib.metadata import version as version_of
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from fgrlhf import segmentation
from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.shared_messages import print_once
from fgrlhf.configs.strict import with_breaks
from fgrlhf.segmentation import MIN_WORDS as MIN_WORDS
from fgrlhf.segmentation import Span as Span
from fgrlhf.segmentation import clause_starts
from fgrlhf.words import is_written_without_spaces, word_spans

# spaCy takes seconds to import, and the feedback server does without it: `_pipeline` imports it
if TYPE_CHECKING:
    from spacy.language import Language

LEVELS = ("token", "word", "subsentence", "sentence", "paragraph", "step", "whole")
SEPARATED = "step:"  # the level "step:X" has steps that the text X separates


def is_level(value: object) -> bool:
    """Whether `value` names a level of segments."""
    if not isinstance(value, str):
        return False
    return value in LEVELS or (value.startswith(SEPARATED) and value != SEPARATED)


def is_step(level: str | None) -> bool:
    """Whether the segments of a level are steps: lines, or parts between separators."""
    return level is not None and (level == "step" or level.startswith(SEPARATED))


def _check_level(value: str) -> str:
    if not is_level(value):
        raise ValueError(f"`{shorten(value, 60)}` is not a level of segments: {LEVEL_HELP}")
    return with_breaks(value)


LEVEL_HELP = f"choose one of {', '.join(LEVELS)}, or step:SEPARATOR"
Level = Annotated[str, AfterValidator(_check_level)]
# `whole`, and its name in sequence scorers
WHOLE_LEVELS = ("whole", "sequence")
# levels whose segments depend on the segmenter
DIVIDED_LEVELS = ("word", "subsentence", "sentence")

MULTILINGUAL = "multilingual"
RULES_VERSION = "5"  # of the rules in fgrlhf/segmentation.py; another one may split texts otherwise
PUBLISHED = "published"
BLANK = "blank_en_sentencizer"
TRAINED = "en_core_web_sm"
SEGMENT_MARK = "</s>"
BREAK_AFTER = ",;!?"

# Names of spaCy's packages: language, type, genre, size. `spacy.load` would import any package.
_PIPELINE_NAME = re.compile(r"[a-z]{2,3}(_[a-z0-9]+)+_(sm|md|lg|trf)")

# Components of a pipeline that do not affect sentence boundaries.
_UNUSED = ("ner", "tagger", "lemmatizer", "attribute_ruler", "morphologizer")
_CACHED_TEXTS = 16_384
_WORD = re.compile(r"\S+")
_LONG_WORD = re.compile(r"\S{200,}")  # the published rows have none


# text -> half-open spans of its sentences, in order and without overlaps
SentenceFunction = Callable[[str], Sequence[Span]]
_of_tasks: dict[str, SentenceFunction] = {}


def add_segmenters(segmenters: Mapping[str, SentenceFunction]) -> None:
    """Make the segmenters of a task known by their names.

    Raises:
      UserError: a name is no identifier, or that of another segmenter, or no function has it.
    """
    for name, sentences in segmenters.items():
        if not name.isidentifier() or name == PUBLISHED or _is_of_library(name):
            raise UserError(
                f"a segmenter of the task has the name {shorten(repr(name))}: choose another one of"
                " letters, digits and `_`, which no segmenter of the library has"
            )
        if not inspect.isfunction(sentences):
            raise UserError(
                f"the segmenter `{shorten(name)}` of the task is not a function: define one that"
                " returns the spans of a text's sentences"
            )
        if _of_tasks.get(name) is not sentences:
            _of_tasks[name] = sentences
            _raw_sentences.cache_clear()
            _subsentences.cache_clear()


def _is_of_library(name: str) -> bool:
    return name in (MULTILINGUAL, BLANK) or _PIPELINE_NAME.fullmatch(name) is not None


def is_segmenter_name(name: str) -> bool:
    """Whether a segmenter that is described in a file can have this name.

    `multilingual`, the blank pipeline, one of the task or, for example, `en_core_web_sm`.
    """
    return name in _of_tasks or _is_of_library(name)


def _check_segmenter(value: str) -> str:
    if value != PUBLISHED and not is_segmenter_name(value):
        raise ValueError(f"`{shorten(value, 60)}` is not a segmenter: {SEGMENTER_HELP}")
    return value


SEGMENTER_HELP = (
    f"{MULTILINGUAL}; {PUBLISHED}: spaCy's {TRAINED} if that is installed, else {BLANK}; or a spaCy"
    " pipeline or a segmenter of the task by its name"
)
SegmenterName = Annotated[str, AfterValidator(_check_segmenter)]


def _is_installed(name: str) -> bool:
    """Whether a package of this name is installed, without importing it."""
    try:
        version_of(name)
    except PackageNotFoundError:
        return False
    return True


def _declares_a_model(name: str) -> bool:
    """Whether an installed package is registered as a spaCy pipeline, without importing it."""
    return bool(entry_points(group="spacy_models", name=name))


@cache
def _pipeline(name: str) -> "Language":
    import spacy

    if name == BLANK:
        nlp = spacy.blank("en")
        nlp.add_pipe("sentencizer")
        nlp.max_length = sys.maxsize  # spaCy's limit is for parsers, which need much memory
        return nlp
    if not is_segmenter_name(name):
        raise UserError(
            f"the segmenter {shorten(repr(name))} is not a spaCy pipeline or a segmenter of the"
            f" task: name one such as `{TRAINED}`, or `{BLANK}` or `{MULTILINGUAL}`, which need no"
            " download"
        )
    if not _is_installed(name):
        raise UserError(
            f"the segmenter `{shorten(name)}` is not installed, and another one would split answers"
            f" into other segments. Install it with `python -m spacy download {shorten(name)}`, or"
            f" prepare the reward-model files and train the reward models again with `{BLANK}`,"
            " which needs no download"
        )
    if not _declares_a_model(name):
        raise UserError(
            f"the installed package `{shorten(name)}` is not a spaCy pipeline, so it is not loaded"
            " as a segmenter. Install the pipeline with"
            f" `python -m spacy download {shorten(name)}`, or use `{BLANK}`"
        )
    return spacy.load(name, exclude=_UNUSED)


def _plain_word(match: re.Match) -> str:
    """Replace a very long word, except for its end, by letters.

    spaCy's tokenizer needs half a second for a thousand brackets, and four times that for twice as
    many. The price is that no sentence ends inside such a word, although spaCy would split
    `Cut.In` in two.
    """
    return "x" * (len(match[0]) - 3) + match[0][-3:]


@lru_cache(maxsize=_CACHED_TEXTS)
def _raw_sentences(name: str, text: str) -> tuple[Span, ...]:
    """The sentences that are not blank. Those of `multilingual` have no white space at the ends.

    Raises:
      UserError: the text is longer than the pipeline's limit of a million characters; the blank
        pipeline has no limit. Or the segmenter of a task returns spans that no sentences have.
    """
    if name == MULTILINGUAL:
        return tuple(segmentation.sentences(text))
    if name in _of_tasks:
        return _sentences_of_task(name, text)
    nlp = _pipeline(name)
    if len(text) > nlp.max_length:
        raise UserError(
            f"a text of {len(text):,} characters is too long for the segmenter"
            f" `{shorten(name)}`: it reads {nlp.max_length:,}. Shorten it"
        )
    sentences = nlp(_LONG_WORD.sub(_plain_word, text)).sents
    spans = ((sentence.start_char, sentence.end_char) for sentence in sentences)
    return tuple((start, end) for start, end in spans if not text[start:end].isspace())


def _sentences_of_task(name: str, text: str) -> tuple[Span, ...]:
    spans = [(int(start), int(end)) for start, end in _of_tasks[name](text)]
    last = 0
    for start, end in spans:
        if not last <= start <= end <= len(text):
            raise UserError(
                f"the segmenter `{shorten(name)}` of the task returned the span ({start}, {end})"
                f" after the character {last} of a text of {len(text)}: return half-open spans of"
                f" sentences, in order and without overlaps. The text: {shorten(text)}"
            )
        last = end
    return tuple((start, end) for start, end in spans if text[start:end].strip())


@lru_cache(maxsize=_CACHED_TEXTS)
def _subsentences(name: str, text: str) -> tuple[Span, ...]:
    if name == MULTILINGUAL:
        return tuple(segmentation.subsentences(text))
    spans = []
    for begin, stop in _raw_sentences(name, text):
        words = [match.span() for match in _WORD.finditer(text, begin, stop)]
        firsts = subsentence_starts([text[start:end] for start, end in words])
        nexts = [*firsts[1:], len(words)]  # the first word of the next sub-sentence
        for first, following in zip(firsts, nexts):
            start, _ = words[first]
            _, end = words[following - 1]
            spans.append((start, end))
    return tuple(spans)


def subsentence_starts(words: Sequence[str]) -> list[int]:
    """The indices of the words at which a sentence's sub-sentences begin, as in the published code.

    There is a break after a word that ends in one of `, ; ! ?`. See `clause_starts`.
    """
    breaks = [i > 0 and words[i - 1][-1] in BREAK_AFTER for i in range(len(words))]
    return clause_starts(breaks)


_LINE = re.compile(r"\S(?:[^\n]*\S)?")
_PARAGRAPH = re.compile(
    r"""
    \S                                 # no white space at the beginning
    (?: (?!\n[^\S\n]*\n) [\s\S] )*    # anything up to a blank line or the end
    (?<=\S)                            # no white space at the end
    """,
    re.VERBOSE,
)


def _without_white_space(text: str, start: int, end: int) -> Span:
    """The characters [start, end), which are not all blank, without white space around them."""
    piece = text[start:end]
    leading = len(piece) - len(piece.lstrip())
    return start + leading, start + len(piece.rstrip())


def _spans_between(text: str, ends: Sequence[int]) -> list[Span]:
    """The spans between successive ends, without white space around them or blank spans."""
    spans = []
    start = 0
    for end in ends:
        if text[start:end].strip():
            spans.append(_without_white_space(text, start, end))
        start = end
    return spans


def _spans_between_separators(text: str, separator: str) -> list[Span]:
    """The parts that a separator divides, without it or the white space around them.

    A line break of the separator is one of the text, of either kind.
    """
    pattern = re.escape(separator).replace("\\\n", "\r?\n")
    between = [match.span() for match in re.finditer(pattern, text)]
    starts = [0, *(end for _, end in between)]
    ends = [*(start for start, _ in between), len(text)]
    spans = []
    for start, end in zip(starts, ends, strict=True):
        if text[start:end].strip():
            spans.append(_without_white_space(text, start, end))
    return spans


@dataclass(frozen=True)
class Segmenter:
    """Splits texts into segments. Its name and version are saved with a reward model."""

    name: str
    version: str

    def sentences(self, text: str) -> list[Span]:
        """Half-open character spans of the sentences, without the white space around them."""
        return [
            _without_white_space(text, start, end) for start, end in _raw_sentences(self.name, text)
        ]

    def subsentences(self, text: str) -> list[Span]:
        """Half-open character spans of the sub-sentences, without the white space around them."""
        return list(_subsentences(self.name, text))

    def segments(
        self, text: str, level: Level, token_ends: Sequence[int] | None = None
    ) -> list[Span]:
        """Half-open character spans at a level, without white space around them.

        A blank text has none. The levels are

            token       the text that each token of the policy adds; tokens that add no character or
                        only white space have no span
            word        separated by white space; `multilingual`: see fgrlhf/words.py
            subsentence, sentence
            paragraph   separated by blank lines
            step        a line
            step:X      parts between separators X, without them
            whole       the whole text, including white space around it

        Args:
          token_ends: characters complete after each token; required for the level "token".
        """
        if level == "token":
            if token_ends is None:
                raise ValueError("the level `token` needs the ends of the policy's tokens")
            return _spans_between(text, token_ends)
        if level == "word" and self.name == MULTILINGUAL:
            return word_spans(text)
        if level == "word":
            return [match.span() for match in _WORD.finditer(text)]
        if level == "subsentence":
            return self.subsentences(text)
        if level == "sentence":
            return self.sentences(text)
        if level == "paragraph":
            return [match.span() for match in _PARAGRAPH.finditer(text)]
        if level == "step":
            return [match.span() for match in _LINE.finditer(text)]
        if level.startswith(SEPARATED) and is_level(level):
            return _spans_between_separators(text, level.removeprefix(SEPARATED))
        if level in WHOLE_LEVELS:
            return [(0, len(text))] if text.strip() else []
        raise ValueError(f"`{shorten(level, 60)}` is not a level of segments: {LEVEL_HELP}")

    def sentence_offsets(self, text: str) -> list[int]:
        """0, then the end of every sentence, as in the published code."""
        return [0, *(end for _, end in _raw_sentences(self.name, text))]

    def subsentence_offsets(self, text: str) -> list[int]:
        """The start of every sub-sentence, then the text's length, as in the published code."""
        return [*(start for start, _ in _subsentences(self.name, text)), len(text)]

    def describe(self) -> dict[str, str]:
        """Name and version, with which `load_segmenter` loads the same segmenter again."""
        return asdict(self)


# before the name of a segmenter, where a program lists its inputs
SEGMENTER_INPUT = "segmenter:"


def segmenter_input(name: str) -> str:
    """The name under which a run records a segmenter among its inputs."""
    return f"{SEGMENTER_INPUT}{name}"


def installed_segmenter(name: str) -> str:
    """The segmenter that `name` stands for here, and its version, without loading it.

    >>> installed_segmenter("multilingual")
    'multilingual 1'
    """
    name = _resolved(name)
    if name == MULTILINGUAL or name in _of_tasks:
        return f"{name} {_version(name)}"
    package = "spacy" if name == BLANK else name
    return f"{name} {version_of(package) if _is_installed(package) else 'is not installed'}"


def _resolved(name: str) -> str:
    """The segmenter that a name stands for: `published` is the one of two that is installed."""
    if name != PUBLISHED:
        return name
    return TRAINED if _is_installed(TRAINED) else BLANK


@cache
def _print_choice(name: str) -> None:
    """Say once which segmenter `published` is here, since it depends on what is installed."""
    print_once(f"note: the segmenter `{PUBLISHED}` is {name} here; name it to choose it yourself")


def load_segmenter(name: str | Mapping[str, str] = MULTILINGUAL) -> Segmenter:
    """Load a segmenter by its name, or by the output of `Segmenter.describe`.

    `published` is `en_core_web_sm` if that is installed, else `blank_en_sentencizer`, which always
    is; a note says which. Warns if the version here is not the described one.

    Raises:
      UserError: the pipeline is not installed, or the name is not that of a segmenter.
    """
    described_version = None
    pipeline_name = name
    if isinstance(name, Mapping):
        described_version = name.get("version")
        pipeline_name = name.get("name")
    if not isinstance(pipeline_name, str) or not isinstance(described_version, str | None):
        raise UserError(
            "a segmenter is described by the texts `name` and `version`, not by"
            f" {shorten(repr(name))}"
        )
    if pipeline_name == PUBLISHED:
        pipeline_name = _resolved(PUBLISHED)
        _print_choice(pipeline_name)
    version = _version(pipeline_name)
    if described_version not in (None, version):
        message = (
            f"segments were made with {pipeline_name} {described_version}, this is {version}:"
            " some may differ"
        )
        warnings.warn(message, stacklevel=2)
    return Segmenter(pipeline_name, version)


def default_segmenter(texts: Iterable[str]) -> Segmenter:
    """`published`; for texts in a script without spaces, in which it finds none, `multilingual`."""
    sample = "".join(islice(texts, 100))
    return load_segmenter(MULTILINGUAL if is_written_without_spaces(sample) else PUBLISHED)


def _version(name: str) -> str:
    if name == MULTILINGUAL:
        return RULES_VERSION
    if name in _of_tasks:  # the file that defines it
        code = Path(inspect.getfile(_of_tasks[name])).read_bytes()
        return hashlib.sha256(code).hexdigest()[:12]
    nlp = _pipeline(name)
    return version_of("spacy") if name == BLANK else nlp.meta["version"]


def rm_words(
    prefix: Sequence[str], text: str, spans: Sequence[Span]
) -> tuple[list[str], list[int]]:
    """The input of a segment classifier: the prefix, then `</s>` and the words of every segment.

    Returns:
      The words, and the index of each segment's `</s>`. (A text may contain `</s>` itself, so a
      search for it would not find the marks.)
    """
    words = list(prefix)
    marks = []
    for start, end in spans:
        marks.append(len(words))
        words.append(SEGMENT_MARK)
        words += text[start:end].split()
    return words, marks
