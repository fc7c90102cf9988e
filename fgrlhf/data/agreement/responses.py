"""Which annotators judged the same response, and who of them looked for errors."""

import json
from collections import Counter
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fgrlhf.data.judgements import (
    LIKED_ASPECT,
    NO_ERROR,
    STEP_ASPECT,
    JudgedResponse,
    Judgement,
    missing_places,
)
from fgrlhf.data.names import Spellings
from fgrlhf.metrics.clusters import CLUSTER, cluster_of


@dataclass
class Shared:
    """A response with the judgements of its annotators, by annotator."""

    response: str
    by_annotator: dict[str, list[Judgement]] = field(default_factory=dict)
    prompt: str = ""
    cluster: str | None = None  # what it shares with others, such as a document

    def spans(self, annotator: str) -> list[Judgement]:
        """The errors that an annotator marked. Spans that they like are not errors.

        They are sorted, the longest first, so that no figure depends on the order in which they
        were marked.
        """
        spans = [item for item in self.by_annotator[annotator] if is_marked_error(item)]
        return sorted(spans, key=_longest_first)

    def missing_information(self, annotator: str) -> Counter[tuple[str, str | None, str]]:
        """What an annotator named as missing: (aspect, label, places)."""
        named: Counter[tuple[str, str | None, str]] = Counter()
        for judgement in self.by_annotator[annotator]:
            if is_missing_information(judgement):
                named[judgement.aspect, judgement.label, _places(judgement)] += 1
        return named

    def only(self, annotators: Iterable[str]) -> "Shared":
        """The response with the judgements of some of its annotators."""
        chosen = {name: self.by_annotator[name] for name in annotators}
        return replace(self, by_annotator=chosen)


def is_marked_error(judgement: Judgement) -> bool:
    return judgement.span is not None and judgement.aspect not in (LIKED_ASPECT, STEP_ASPECT)


def is_missing_information(judgement: Judgement) -> bool:
    """Whether a judgement of the whole text has the places where the missing facts are stated."""
    return judgement.span is None and missing_places(judgement) is not None


def _places(judgement: Judgement) -> str:
    """The places of missing information as text, with lists such as its sentences in order."""
    places = {}
    for key, value in (missing_places(judgement) or {}).items():
        places[key] = sorted(value, key=json.dumps) if isinstance(value, list) else value
    return json.dumps(places, sort_keys=True)


def _longest_first(judgement: Judgement) -> tuple[int, int, str, str, str]:
    start, end = judgement.span or (0, 0)
    label = judgement.label or ""
    return start - end, start, judgement.aspect, label, judgement.severity or ""


def by_response(files: Mapping[str, Sequence[JudgedResponse]]) -> list[Shared]:
    """The responses of all files, with everybody who judged them.

    Responses are the same if their texts, prompts and sources are. An annotator who judged the same
    response in several rows judged several copies of it, such as equal outputs of two systems. The
    nth copy of one annotator is compared with the nth copy of the others. This also holds across
    files, where one name can stand for two people. A judgement without an annotator belongs to its
    file's only annotator, or to the file. Spellings of one name are one annotator (`name_key`).
    With several files, a row without judgements counts too,
    unless its file names several annotators: its annotator found nothing.
    """
    shared: dict[Hashable, list[Shared]] = {}  # the copies of each response
    judged_copies: Counter[Hashable] = Counter()  # by response and annotator
    for row in _judged_rows(files):
        copy = max((judged_copies[row.key, name] for name in row.by_annotator), default=0)
        copies = shared.setdefault(row.key, [])
        if copy == len(copies):
            copies.append(Shared(row.response, prompt=row.prompt, cluster=row.cluster))
        for name, judgements in row.by_annotator.items():
            judged_copies[row.key, name] = copy + 1
            copies[copy].by_annotator.setdefault(name, []).extend(judgements)
    return [entry for copies in shared.values() for entry in copies]


def judged_in_several_files(files: Mapping[str, Sequence[JudgedResponse]]) -> int:
    """How many responses one annotator's name judged in two files or more."""
    files_of: dict[tuple[Hashable, str], set[str]] = {}  # by response and annotator
    for row in _judged_rows(files):
        for name in row.by_annotator:
            files_of.setdefault((row.key, name), set()).add(row.file)
    return len({key for (key, _), names in files_of.items() if len(names) > 1})


# keys of rows, in public data, that name the languages of a translation
LANGUAGE_KEYS = (
    *("langs", "lp", "lang_pair", "language_pair"),
    *("target_lang", "target_language", "tgt_lang"),
)


@dataclass(frozen=True)
class _JudgedRow:
    """A row of a file; rows of the same response have the same key."""

    file: str
    key: Hashable
    prompt: str
    response: str
    by_annotator: Mapping[str, Sequence[Judgement]]
    cluster: str | None


def _judged_rows(files: Mapping[str, Sequence[JudgedResponse]]) -> Iterator[_JudgedRow]:
    spellings = Spellings()
    for file, items in files.items():
        names = set()
        for judgement in (one for item in items for one in item.judgements):
            if judgement.annotator is not None:
                names.add(spellings.of(judgement.annotator))
        # the annotator of judgements that do not name one
        default = next(iter(names)) if len(names) == 1 else file
        for item in items:
            # rows of spans have the prompt as their source if an annotator marked something in it
            source = None if item.source == item.prompt.text else item.source
            by_annotator: dict[str, list[Judgement]] = {}
            if not item.judgements and len(files) > 1 and len(names) <= 1:
                by_annotator[default] = []
            for judgement in item.judgements:
                name = spellings.of(judgement.annotator) if judgement.annotator else default
                by_annotator.setdefault(name, []).append(judgement)
            # an output can be the same in two languages
            languages = tuple(str(item.prompt.meta.get(name)) for name in LANGUAGE_KEYS)
            key = (item.prompt.text, source, item.response, languages)
            prompt = item.prompt
            cluster = cluster_of(prompt)
            yield _JudgedRow(file, key, prompt.text, item.response, by_annotator, cluster)


def clusters(shared: Sequence[Shared]) -> list[Hashable]:
    """The cluster of each response: that of its row, else see `clusters_of`."""
    return named_clusters([entry.prompt for entry in shared], [entry.cluster for entry in shared])


def named_clusters(prompts: Sequence[str], clusters: Sequence[str | None]) -> list[Hashable]:
    """The cluster that each response names; of one that names none, that of its prompt."""
    names = clusters_of(prompts)
    for place, cluster in enumerate(clusters):
        if cluster is not None:
            names[place] = f"{CLUSTER} {cluster}"
    return names


def clusters_of(prompts: Sequence[str]) -> list[Hashable]:
    """The cluster of each of the responses to these prompts: its prompt.

    Responses to one prompt are similar. Responses without a prompt are clusters of their own, and
    so are all if there is one prompt.
    """
    is_one = len(set(prompts)) == 1
    names: list[Hashable] = []
    for place, prompt in enumerate(prompts):
        names.append(prompt if prompt.strip() and not is_one else place)
    return names


def not_judging_errors(shared: Sequence[Shared]) -> int:
    """How many annotators of a response the figures of errors leave out, over all responses."""
    left_out = 0
    for entry, judged in zip(shared, with_judged_errors(shared), strict=True):
        left_out += len(entry.by_annotator) - len(judged.by_annotator)
    return left_out


def with_judged_errors(shared: Sequence[Shared]) -> list[Shared]:
    """The responses with those of their annotators who looked for errors.

    Annotators who only rated a response, or gave it a verdict of another aspect, may never have
    looked for errors in it. Annotators looked for errors if

    - they marked one as a span,
    - they judged the whole response in an aspect that has spans: an error without a place,
    - they found none: their judgement is `no error`, or they have a row without judgements.

    If nobody marked a span, all annotators count.
    """
    aspects = set()
    for entry in shared:
        for judgements in entry.by_annotator.values():
            aspects |= {item.aspect for item in judgements if is_marked_error(item)}
    judged = []
    for entry in shared:
        names = []
        for name, judgements in entry.by_annotator.items():
            if not judgements or not aspects or judges_errors(judgements, aspects):
                names.append(name)
        judged.append(entry.only(names))
    return judged


def judges_errors(judgements: Iterable[Judgement], aspects: Container[str]) -> bool:
    """Whether an annotator with these judgements looked for errors; see `with_judged_errors`.

    Args:
      aspects: those that have marked spans anywhere in the files.
    """
    return any(item.aspect in aspects or item.label == NO_ERROR for item in judgements)


def with_named_information(shared: Sequence[Shared], with_errors: Sequence[Shared]) -> list[Shared]:
    """The responses with those of their annotators who looked for missing information.

    They named some, or looked for errors, which annotators do at the same time.
    """
    judged = []
    for entry, errors in zip(shared, with_errors, strict=True):
        names = []
        for name in entry.by_annotator:
            if name in errors.by_annotator or entry.missing_information(name):
                names.append(name)
        judged.append(entry.only(names))
    return judged


def looked_for_errors(shared: Sequence[Shared]) -> bool:
    """Whether anybody marked an error, or found none."""
    for entry in shared:
        for judgements in entry.by_annotator.values():
            is_error = any(item.label == NO_ERROR or is_marked_error(item) for item in judgements)
            if is_error or not judgements:
                return True
    return False
