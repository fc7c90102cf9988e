"""Sentences and sub-sentences by rules, for many languages and for chat text: `multilingual`.

1. The text is divided into blocks: lines, except that a line which was only wrapped continues the
   one before it. Fenced code, a heading, a table row and a formula on lines of its own are one
   block and one sentence. The number or bullet of a list item belongs to its item.
2. A block is divided into sentences after the terminal marks of its script, with the closing
   quotes, brackets, notes and HTML tags that follow. Marks within code, formulas and links do not
   count, nor does the stop of an abbreviation, an initial, a number or an ellipsis that the
   sentence continues.
3. A sentence is divided into sub-sentences after commas and semicolons, and at the spaces of Thai,
   Lao, Myanmar and Khmer, which separate clauses there (`clause_starts`).

Thai has no mark that ends a sentence, so a Thai sentence is a line (or ends in `.`, `!` or `?`).
A piece without any letter or digit, such as a quote, a rule, an emoji or an HTML tag, joins the
piece before it.
The spans are in order, do not overlap, and have no white space around them. They cover every other
character of the text.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

from fgrlhf import sentence_patterns as patterns
from fgrlhf.words import is_unspaced, word_spans

Span = tuple[int, int]

MIN_WORDS = 5  # of a sub-sentence
SHORT_LINE = 40  # characters; shorter lines are not wrapped ones
FULL_LINE = 60
LONGEST_LINE = 120  # of a text with wrapped lines
NEAR = 200  # characters before a letter that say what it means


def sentences(text: str) -> list[Span]:
    """Half-open character spans of the sentences; [] for a blank text."""
    text = patterns.OTHER_BREAK.sub("\n", text)
    units = _units(text)
    spans: list[Span] = []
    for start, end, is_whole in _blocks(text, units):
        spans += [(start, end)] if is_whole else _sentences_of_block(text, start, end, units)
    return _without_wordless(text, spans)


def subsentences(text: str) -> list[Span]:
    """Half-open character spans of the sub-sentences; [] for a blank text."""
    text = patterns.OTHER_BREAK.sub("\n", text)
    units = _units(text)
    whole = {(start, end) for start, end, is_whole in _blocks(text, units) if is_whole}
    spans: list[Span] = []
    for start, end in sentences(text):
        spans += [(start, end)] if (start, end) in whole else _clauses(text, start, end, units)
    return spans


def odd_kind(segment: str) -> str | None:
    """Why a segment hardly deserves a judgement of its own; None if it is ordinary.

    It is `a bare number` (as of a list item), `only marks` (no letter or digit), or `code` (a
    fenced block).
    """
    fence = patterns.FENCE.match(segment)
    if fence is not None and fence["fence"]:
        return "code"
    if not _has_word(segment):
        return "only marks"
    numeral = segment.strip(patterns.OPENERS + patterns.CLOSERS + ".．。、।။ ")
    return "a bare number" if numeral.isdigit() else None


def clause_starts(breaks: Sequence[bool], min_words: int = MIN_WORDS) -> list[int]:
    """The indices of the words at which a sentence's sub-sentences begin; [] for no words.

    A sub-sentence begins at word i if `breaks[i]` (a comma, for example, is before it) and
    i + min_words < n. If there are fewer than `min_words` words between the last beginning and this
    one, the last beginning moves here; the first piece of a sentence continues instead (Wu et al.
    2023, appendix D: the density of its R1 reward).
    """
    starts = [0] if breaks else []
    for i in range(1, len(breaks) - min_words):
        if not breaks[i]:
            continue
        if i - starts[-1] >= min_words:
            starts.append(i)
        elif starts[-1] > 0:
            starts[-1] = i
    return starts


# ---- units without a boundary inside -------------------------------------------------------------


class _Units:
    """Code, formulas and labels of a text: ordered spans."""

    def __init__(self, spans: Sequence[Span]):
        self.spans = spans
        self._starts = [start for start, _ in spans]

    def end_around(self, at: int) -> int | None:
        """The end of the unit in which the boundary before character `at` lies; None if in none."""
        i = bisect_right(self._starts, at - 1) - 1
        return self.spans[i][1] if i >= 0 and at < self.spans[i][1] else None

    def is_unit(self, start: int, end: int) -> bool:
        i = bisect_right(self._starts, start) - 1
        return i >= 0 and self.spans[i] == (start, end)


def _units(text: str) -> _Units:
    fences = []
    for match in patterns.FENCE.finditer(text):
        start = match.start("glued") if match["glued"] else match.start()
        fences.append(_trimmed(text, start, match.end()))
    spans = []
    begin = 0
    for start, end in [*fences, (len(text), len(text))]:
        spans += [match.span() for match in patterns.UNITS.finditer(text, begin, start)]
        if start < end:
            spans.append((start, end))
        begin = end
    units = _Units(spans)
    labels = [label for label in _labels(text) if units.end_around(label[1]) is None]
    return _Units(sorted([*spans, *labels])) if labels else units


def _labels(text: str) -> list[Span]:
    """The labels that number the lines of a text, each with the space behind it."""
    labels = list(patterns.LABEL.finditer(text))
    alike = Counter(label["word"] for label in labels)
    return [label.span("label") for label in labels if alike[label["word"]] > 1]


def _trimmed(text: str, start: int, end: int) -> Span:
    """The characters [start, end), which are not all blank, without white space around them."""
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())


# ---- blocks --------------------------------------------------------------------------------------


def _lines(text: str, units: _Units) -> list[Span]:
    """Lines without white space around them, blank ones as empty spans; units are not divided."""
    bounds = [0]
    for match in re.finditer("\n", text):
        if units.end_around(match.end()) is None:
            bounds.append(match.end())
    bounds.append(len(text))
    lines = []
    for start, end in zip(bounds, bounds[1:]):
        lines.append(_trimmed(text, start, end) if text[start:end].strip() else (start, start))
    return lines


def _blocks(text: str, units: _Units) -> list[tuple[int, int, bool]]:
    """The blocks as start, end, and whether the block is one sentence."""
    lines = _lines(text, units)
    texts = [text[start:end] for start, end in lines]
    rows = _table_rows(texts)
    is_unit = [units.is_unit(start, end) for start, end in lines]
    width = max(
        (len(texts[n]) for n in range(len(lines)) if not is_unit[n] and n not in rows), default=0
    )
    blocks: list[tuple[int, int, bool]] = []
    continues = False  # whether the last block may continue
    for n, (start, end) in enumerate(lines):
        line = texts[n]
        if not line:  # the number of an item may be alone above it
            continues = (
                continues
                and patterns.BARE_NUMBER.fullmatch(text[slice(*blocks[-1][:2])]) is not None
            )
            continue
        if n and _underlines(texts[n - 1], line) and blocks[-1][1] == lines[n - 1][1]:
            blocks[-1] = (blocks[-1][0], end, True)
            continues = False
            continue
        is_heading = (
            patterns.HEADING.match(line) is not None
            or patterns.BOLD_LINE.fullmatch(line) is not None
        )
        is_whole = is_unit[n] or n in rows or patterns.HEADING.match(line) is not None
        begins = is_whole or is_heading or patterns.ITEM.match(line) is not None
        is_indented = text[max(start - 2, 0) : start].strip(" \t") == ""
        last = text[slice(*blocks[-1][:2])] if continues else ""
        if continues and not begins and _is_wrapped(last, line, width, is_indented):
            blocks[-1] = (blocks[-1][0], end, False)
        else:
            blocks.append((start, end, is_whole))
        continues = not is_whole and not is_heading
    return blocks


def _underlines(title: str, line: str) -> bool:
    """Whether a line of `=` or `-` makes a heading of the line before it.

    A line of `-` behind a whole sentence is a rule.
    """
    if not title or patterns.UNDERLINE.fullmatch(line) is None:
        return False
    is_item = patterns.ITEM.match(title) is not None or title.startswith(">")
    return line[0] == "=" or not (is_item or _has_ended(title))


def _table_rows(lines: Sequence[str]) -> set[int]:
    """The indices of the lines that are rows of a table."""
    rows = {n for n, line in enumerate(lines) if patterns.TABLE_ROW.fullmatch(line)}
    for n, line in enumerate(lines):
        if not (n and "|" in lines[n - 1] and patterns.TABLE_RULE.fullmatch(line)):
            continue
        rows |= {n - 1, n}
        below = n + 1
        while below < len(lines) and "|" in lines[below]:
            rows.add(below)
            below += 1
    return rows


def _has_ended(line: str) -> bool:
    """Whether a line ends in a terminal mark or a colon, apart from closing marks."""
    last = line.rstrip(patterns.CLOSERS)[-1:]
    return not last or last in ":：" or patterns.TERMINALS.fullmatch(last) is not None


def _is_wrapped(line: str, following: str, width: int, is_indented: bool) -> bool:
    """Whether a line goes on in the `following` line of a text whose lines have up to `width`.

    It does after a comma and after the bare number of a list item. A longer line without a mark at
    its end does if the next one begins in lower case, and so does a list item if the next line is
    indented. It also does if the first word of the next line would not have fitted, in a text whose
    lines are as short as wrapped ones.
    """
    is_item = is_indented and patterns.ITEM.match(line) is not None
    if patterns.BARE_NUMBER.fullmatch(line) or line[-1] in patterns.COMMAS:
        return True
    line = line[line.rfind("\n") + 1 :]
    last = line.rstrip(patterns.CLOSERS)[-1:]
    if _has_ended(line) or (len(line) < SHORT_LINE and not is_item) or is_unspaced(last):
        return False
    if _is_small(following):
        return True
    word = following.split(maxsplit=1)[0]
    return len(line) >= FULL_LINE and width <= LONGEST_LINE and len(line) + len(word) >= width


# ---- sentences -----------------------------------------------------------------------------------


def _sentences_of_block(text: str, start: int, end: int, units: _Units) -> list[Span]:
    spans = []
    begin = at = start
    while (match := patterns.TERMINALS.search(text, at, end)) is not None:
        at = match.end()
        inside = units.end_around(match.start() + 1)
        if inside is not None and patterns.LINK_END.match(text, at, end) is None:
            at = max(at, inside)
            continue
        at = inside or at  # of a link whose text ends with the sentence
        closing = patterns.CLOSING.match(text, at, end)
        if closing is not None and not _opens(text, closing.span(), begin, start, end):
            at = closing.end()
        if _ends_sentence(text, start, match, at, end):
            emoji = patterns.EMOJI.match(text, at, end)
            at = emoji.end() if emoji is not None else at
            spans.append(_trimmed(text, start, at))
            start = at
            while start < end and text[start].isspace():
                start += 1
    if start < end:
        spans.append((start, end))
    return spans


def _opens(text: str, marks: Span, begin: int, start: int, end: int) -> bool:
    """Whether marks that could close a quote or emphasis open one instead.

    They do if a letter follows directly and the sentence, from `start`, has no such mark before
    them. In scripts without spaces, a letter follows closing marks too: there a straight quote
    opens if the block, from `begin`, has an even number before it.
    """
    at, after = marks
    if after == end or not text[after].isalnum() or text[at] in "<[【":
        return False
    if is_unspaced(text[after]):
        return text[at] == '"' and text.count('"', begin, at) % 2 == 0
    return text[at] not in text[start:at]


def _ends_sentence(text: str, start: int, match: re.Match, at: int, end: int) -> bool:
    """Whether the sentence that begins at `start` ends with these marks and the closers to `at`."""
    marks = match[0]
    if at == end:
        return True
    if at > match.end() and text[at - 1] in '」』）】”"' and patterns.PARTICLE.match(text, at):
        return False
    following = text[at]
    before = text[match.start() - 1] if match.start() > start else " "
    if any(mark in patterns.ALWAYS for mark in marks):
        return _full_mark_ends(text, start, match, at)
    if not _is_spaced(text, match, at) and not _needs_no_space(marks[-1], before, following):
        return False
    word = patterns.FIRST_WORD.match(text, at, end)
    first = (word[1] if word else None) or ""
    is_small = _is_small(first)
    if is_small and (at > match.end() or patterns.DASH.match(text, at, end)):  # "Why?" she asked
        return False
    if marks[-1] in ";\u037e":
        return "\u0370" <= before <= "\u03ff"  # asks in Greek
    if "…" in marks or marks.endswith(".."):
        return not is_small and not is_unspaced(following)
    if marks != ".":
        return True
    return _stop_ends(text, start, match.start(), first)


def _is_spaced(text: str, match: re.Match, at: int) -> bool:
    """Whether white space follows the marks, closers and emoji, or the tag of an HTML block."""
    tags = patterns.BLOCK_TAG.search(text, match.end(), at) or patterns.BLOCK_TAG.match(text, at)
    emoji = patterns.EMOJI.match(text, at)
    after = at if emoji is None else emoji.end()
    return text[after : after + 1].isspace() or tags is not None


def _needs_no_space(mark: str, before: str, following: str) -> bool:
    """Whether `mark` can end a sentence between these characters, without a space after it.

    In scripts without spaces, `!` and `?` do. A stop does in Chinese and Japanese; in the others it
    belongs to an abbreviation.
    """
    if mark in "!?":
        return is_unspaced(before) or is_unspaced(following)
    if not is_unspaced(before) or patterns.SPACED_CLAUSES.match(before) is not None:
        return False
    return mark not in ".…" or is_unspaced(following)


def _full_mark_ends(text: str, start: int, match: re.Match, at: int) -> bool:
    """Whether a mark that needs no space after it ends the sentence that begins at `start`."""
    following = text[at]
    if following in patterns.COMMAS:
        return False
    before = text[match.start() - 1 : match.start()]
    if match[0] == "．" and before.isdecimal() and following.isdecimal():
        return False
    return (
        match[0] not in "．।။۔" or patterns.BARE_NUMBER.fullmatch(text[start : match.end()]) is None
    )


def _stop_ends(text: str, start: int, stop: int, first: str) -> bool:
    """Whether a single `.` ends the sentence that begins at `start`.

    Args:
      stop: the place of the `.`.
      first: the first word after it, or a digit; "" if neither follows.
    """
    sentence = text[start : stop + 1]
    if patterns.BARE_NUMBER.fullmatch(sentence) or patterns.NUMBER_AFTER_COLON.search(
        sentence[-40:]
    ):
        return False
    match = patterns.WORD_BEFORE.search(text, max(start, stop - 25), stop)
    word = match[0] if match else ""
    lowered = word.lower()
    is_start = _is_starter(first)
    if lowered.isdecimal() or patterns.ROMAN.fullmatch(word):
        return not _is_ordinal(word, first, sentence)
    if len(word) == 1 and _ends_a_word(text, stop - 1):
        return True
    if patterns.SPACED_ABBREVIATION.search(text, max(start, stop - 5), stop):
        return not _is_small(first)
    if lowered in ("г", "в") and patterns.YEAR.search(text, max(start, stop - 12), stop) is None:
        return False
    is_before_number = lowered in patterns.BEFORE_NUMBER or lowered.endswith("str")
    if is_before_number and (first.isdecimal() or word in ("pp", "p")):
        return False
    if lowered in patterns.BEFORE_NAME and not (lowered == "v" and first.isdecimal()):
        return False
    if _is_letter(word):
        return _letter_ends(text, start, stop, first)
    if lowered in patterns.MAY_END:
        if _is_small(first) or first.isdecimal() or not first:
            return False
        if lowered in ("a.m", "p.m", "am", "pm"):
            return first.lower() not in patterns.AFTER_TIME
        return is_start or lowered in patterns.BEFORE_CAPITAL or not word.isascii()
    if patterns.ACRONYM.fullmatch(word):
        return is_start
    return patterns.THAI_CONSONANTS.fullmatch(word) is None


def _is_small(word: str) -> bool:
    """Whether a word begins in lower case. Georgian has one case, which Unicode calls lower."""
    return word[:1].islower() and not "\u10d0" <= word[:1] <= "\u10ff"


def _is_starter(first: str) -> bool:
    """Whether a word often begins sentences, and is written as their beginning."""
    lowered = first.lower().replace("’", "'")
    known = lowered in patterns.STARTERS or lowered.partition("'")[0] in patterns.STARTERS
    return known and not _is_small(first)


def _is_ordinal(number: str, first: str, sentence: str) -> bool:
    """Whether the stop behind a number makes it an ordinal, as in `3. Oktober`.

    A short number before a word in lower case is one, unless the text has no capitals; and so is a
    Roman one. Between an article and a word that begins no sentence it is one too: `der 3. Stock`.
    """
    if number.isdecimal() and len(number) > 2:
        return False
    capital = next((character for character in sentence if character.isalpha()), "").isupper()
    *_, last, _ = ["", *sentence[-30:].lower().split()]
    names = last in patterns.BEFORE_ORDINAL and not _is_starter(first) and not first.isdecimal()
    return (
        first.lower() in patterns.MONTHS
        or (capital and _is_small(first))
        or (names and first != "")
    )


def _ends_a_word(text: str, at: int) -> bool:
    """Whether the letter at `at` ends a longer word or a path: `Bob's`, `a.b/c`.

    A capital letter behind an apostrophe is an initial (d'A. Smith); Hebrew has no capitals.
    """
    before = text[at - 1 : at]
    if before == "/":
        return True
    return before in ("'", "’", '"') and text[at - 2 : at - 1].isalpha() and not text[at].isupper()


def _is_letter(word: str) -> bool:
    """Whether a word is one letter, which a stop can abbreviate. A Korean syllable is a word."""
    if len(word) != 1 or not word.isalpha() or "\uac00" <= word <= "\ud7a3":
        return False
    return not is_unspaced(word) or patterns.SPACED_CLAUSES.match(word) is not None


def _letter_ends(text: str, start: int, stop: int, first: str) -> bool:
    """Whether a stop behind a single letter ends the sentence that begins at `start`.

    It is an initial, as in `J. A. Smith`, or part of an abbreviation, as in `z. B.`. But it ends
    the sentence before a usual beginning, after `answer` and the like, and behind a variable.
    """
    if patterns.LETTER_FOLLOWS.match(text, stop + 1) is not None or first == "Chr":  # 5 v. Chr.
        return False
    if _is_starter(first):
        return True
    letter = text[stop - 1]
    near = text[max(start, stop - NEAR) : stop - 1]
    *before, last = near.lower().split() or [""]
    named = last.rstrip(":") in patterns.BEFORE_LETTER or (
        last in ("is", "be", "are") and patterns.CHOICES & {*before}
    )
    is_name = named or (letter in patterns.VARIABLES and not last.endswith("."))
    return bool(is_name) and first[:1].isupper()


def _has_word(text: str) -> bool:
    """Whether a text has a letter or digit outside HTML tags."""
    return any(character.isalnum() for character in patterns.TAG.sub("", text))


def _without_wordless(text: str, spans: Sequence[Span]) -> list[Span]:
    """The spans, where those without a letter or digit have joined the one before (or after)."""
    joined: list[Span] = []
    waiting: int | None = None  # where pieces begin that have nothing before them to join
    for start, end in spans:
        has_word = _has_word(text[start:end])
        if not has_word and joined:
            joined[-1] = (joined[-1][0], end)
        elif not has_word:
            waiting = start if waiting is None else waiting
        else:
            joined.append((start if waiting is None else waiting, end))
            waiting = None
    if waiting is not None:
        joined.append((waiting, spans[-1][1]))
    return joined


# ---- sub-sentences -------------------------------------------------------------------------------


def _clauses(text: str, start: int, end: int, units: _Units) -> list[Span]:
    words: list[Span] = []
    for begin, stop in word_spans(text[start:end]):
        word = (start + begin, start + stop)
        is_mark = not any(character.isalnum() for character in text[word[0] : word[1]])
        if is_mark and words and words[-1][1] == word[0]:  # `，` belongs to the word before it
            words[-1] = (words[-1][0], word[1])
        else:
            words.append(word)
    breaks = [False] * len(words)
    for i in range(1, len(words)):
        at = words[i][0]
        breaks[i] = _is_clause_break(text, words[i - 1], at) and units.end_around(at) is None
    firsts = clause_starts(breaks)
    nexts = [*firsts[1:], len(words)]
    return [(words[first][0], words[following - 1][1]) for first, following in zip(firsts, nexts)]


def _is_clause_break(text: str, word: Span, at: int) -> bool:
    """Whether a sub-sentence may begin at `at`, after `word`."""
    start, end = word
    piece = text[start:end].rstrip(patterns.CLOSERS)
    if piece and piece[-1] in patterns.CLAUSE_MARKS:
        return True
    # a space between clauses of a script that has no spaces between words
    return end < at and patterns.SPACED_CLAUSES.match(text[end - 1]) is not None
