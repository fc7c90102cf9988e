"""Sentences and sub-sentences by rules, for many languages and for chat text: `multilingual`.

1. The text is divided into blocks: lines, except that a line which was only wrapped continues the
   one before it. Fenced code, a heading, a table row and a formula on lines of its own are one
   block and one sentence. The number or bullet of a list item belongs to its item.
2. A block is divided into sentences after the terminal marks of its script, with the closing quotes
   and brackets that follow. Marks within code and formulas do not count, nor does the stop of an
   abbreviation, an initial, a number or an ellipsis that the sentence continues.
3. A sentence is divided into sub-sentences after commas and semicolons, and at the spaces of Thai,
   Lao, Myanmar and Khmer, which separate clauses there (`clause_starts`).

Thai has no mark that ends a sentence, so a Thai sentence is a line (or ends in `.`, `!` or `?`).
A piece without any letter or digit, such as a quote, a rule or an emoji, joins the piece before it.
The spans are in order, do not overlap, and have no white space around them. They cover every other
character of the text.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence

from fgrlhf.words import is_unspaced, word_spans

Span = tuple[int, int]

MIN_WORDS = 5  # of a sub-sentence
COMMAS = ",;，；、､،؛՝፣፤၊"
_CLAUSE_MARKS = COMMAS + "!?！？؟"
_CLOSERS = "\"'”’»›)]}」』）】》〉〕］｝〗*_`"
_OPENERS = "\"'“‘«‹„([{「『（【《〈〔［*_`¿¡–—-"
_ALWAYS = "。！？．｡।॥۔؟።፧។៕။։‼⁇⁈⁉"  # need no space after them
_TERMINALS = re.compile(rf"[.!?…;\u037e{_ALWAYS}]+")
_CLOSING = re.compile(rf"(?:[{re.escape(_CLOSERS)}]|\s?[»›]|“(?=\s|$)|\[\d{{1,3}}\])+")
_SPACED_CLAUSES = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\uaa60-\uaa7f]")
_NEWLINE = re.compile(r"\r\n|[\n\r\v\f\x85\u2028\u2029]")

# what has no boundary inside, in the order in which they are searched
_FENCE = re.compile(
    r"""
    ^ [^\S\n]* (```+|~~~+) [^\n]*         # the line that begins it
    (?: \n (?![^\S\n]*\1) [^\n]* )*       # lines
    (?: \n [^\S\n]* \1 [`~]* )?          # the line that ends it, if the text has it
    """,
    re.VERBOSE | re.MULTILINE,
)
_UNITS = re.compile(
    r"""
    \$\$ [^$]{1,2000} \$\$            # formulas
    | \\\[ (?: (?!\\[\[\]]) . ){1,2000} \\\]
    | \\\( (?: (?!\\[()]) . ){1,1000} \\\)
    | \$ (?=[^\s$]) [^$\n]{1,500} (?<=\S) \$ (?!\d)
    | `` [^\n]{1,500}? ``             # code
    | ` [^`\n]{1,500} `
    | ។ល។                             # Khmer "et cetera"
    """,
    re.VERBOSE | re.DOTALL,
)

_NUMERAL = r"(?:\d{1,4}|[A-Za-z]|[ivxIVX]{1,6})"
_ITEM = re.compile(
    rf"""
    \s* (?: [>]\s* )*
    (?: [-*+•‣▪●◦·–—] \s
      | \*{{0,2}} \(? {_NUMERAL} [.)] \*{{0,2}} (?:\s|$)
      | \d{{1,4}} [.)．）、]
      | [（(] (?:\d{{1,4}}|[一二三四五六七八九十]+) [）)]
      | [一二三四五六七八九十]+ [、．]
      | [\u2460-\u2473]
    )
    """,
    re.VERBOSE,
)
_BARE_NUMBER = re.compile(rf"[\W_]*{_NUMERAL}[.)．]\**")
_NUMBER_AFTER_COLON = re.compile(r"[:：]\s+\d{1,3}\.$")
_HEADING = re.compile(r"[^\S\n]{0,3}#{1,6}\s")
_TABLE_ROW = re.compile(r"\s*\|.*\|")
_TABLE_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)+\|?\s*")
_WORD_BEFORE = re.compile(r"[^\s(\[{\"“'‘«„/–—]{1,24}$")
_FIRST_WORD = re.compile(rf"[{re.escape(_OPENERS)}\s]*([^\W\d_]+(?:['’][^\W\d_]+)?|\d)?")

SHORT_LINE = 40  # characters; shorter lines are not wrapped ones
FULL_LINE = 60


def _words_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Abbreviations without their last stop, in lower case. Those of a title or a link are followed by
# what belongs to them; those before a number end a sentence unless a number follows; the others end
# a sentence if the next word looks like the beginning of one.
_BEFORE_NAME = _words_in(
    """mr mrs ms dr prof st rev hon sen rep gov pres gen col maj capt cmdr lt sgt messrs mt ft
    mme mlle sr.a sra srta dra ing lic hr fr frau dott sig e.g i.e eg ie cf viz vs v resp z.b d.h
    u.a bzw ca approx p.ej p.ex т.е напр см ср им ул пл пр акад проф д-р г-н г-жа
    डॉ प्रो पं श्री सं"""
)
_BEFORE_NUMBER = _words_in(
    """no nos nr num núm fig figs eq eqs sec secs ch chap vol vols art ex pp p par para tab tbl app
    op lines ver v abb kap bd s стр рис гл табл п пп ст вып"""
)
_MAY_END = _words_in(
    """al etc inc ltd co corp bros jr sr esq a.m p.m am pm ph.d m.d b.a m.a u.s u.k u.n e.u d.c est
    dept univ assn ave blvd rd jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri
    sat sun usw etc ff bzgl т.д т.п др пр г гг в вв руб коп тыс млн млрд чел"""
)
_MONTHS = _words_in(
    """januar februar märz april mai juni juli august september oktober november dezember
    jahrhundert"""
)
_STARTERS = _words_in(
    """i you he she it we they the a an this that these those there then here now in on at by to of
    for from with as after before since but and or so yet if when while where who what which why
    how however because although my your his her its our their no not yes all both each some many
    most one two also finally first second next thus therefore instead please let is are was were do
    does did can could will would should i'm it's he's she's that's there's they're we're
    you're don't
    он она оно они это эта этот эти мы вы ты я в на но и а затем потом там тут как что когда если
    el la los las un una ella ellos es le les il elle ils elles un une c'est der die das er sie es
    wir ihr und aber dann"""
)


def sentences(text: str) -> list[Span]:
    """Half-open character spans of the sentences; [] for a blank text."""
    units = _units(text)
    spans: list[Span] = []
    for start, end, is_whole in _blocks(text, units):
        spans += [(start, end)] if is_whole else _sentences_of_block(text, start, end, units)
    return _without_wordless(text, spans)


def subsentences(text: str) -> list[Span]:
    """Half-open character spans of the sub-sentences; [] for a blank text."""
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
    if _FENCE.match(segment):
        return "code"
    if not any(character.isalnum() for character in segment):
        return "only marks"
    numeral = segment.strip(_OPENERS + _CLOSERS + ".．。、 ")
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
    """Code and formulas of a text: ordered spans."""

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
    fences = [match.span() for match in _FENCE.finditer(text)]
    fences = [_trimmed(text, start, end) for start, end in fences]
    spans = []
    begin = 0
    for start, end in [*fences, (len(text), len(text))]:
        spans += [match.span() for match in _UNITS.finditer(text, begin, start)]
        if start < end:
            spans.append((start, end))
        begin = end
    return _Units(spans)


def _trimmed(text: str, start: int, end: int) -> Span:
    """The characters [start, end), which are not all blank, without white space around them."""
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())


# ---- blocks --------------------------------------------------------------------------------------


def _lines(text: str, units: _Units) -> list[Span]:
    """Lines without white space around them, blank ones as empty spans; units are not divided."""
    bounds = [0]
    for match in _NEWLINE.finditer(text):
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
    rows = _table_rows([text[start:end] for start, end in lines])
    blocks: list[tuple[int, int, bool]] = []
    continues = False  # whether the last block may continue
    for n, (start, end) in enumerate(lines):
        if start == end:
            continues = False
            continue
        line = text[start:end]
        is_unit = units.is_unit(start, end)
        is_whole = is_unit or n in rows or _HEADING.match(line) is not None
        begins = is_whole or _ITEM.match(line) is not None
        if continues and not begins and _is_wrapped(text, *lines[n - 1], line):
            blocks[-1] = (blocks[-1][0], end, False)
        else:
            blocks.append((start, end, is_whole))
        continues = not is_whole
    return blocks


def _table_rows(lines: Sequence[str]) -> set[int]:
    """The indices of the lines that are rows of a table."""
    rows = {n for n, line in enumerate(lines) if _TABLE_ROW.fullmatch(line)}
    for n, line in enumerate(lines):
        if not (n and "|" in lines[n - 1] and _TABLE_RULE.fullmatch(line)):
            continue
        rows |= {n - 1, n}
        below = n + 1
        while below < len(lines) and "|" in lines[below]:
            rows.add(below)
            below += 1
    return rows


def _is_wrapped(text: str, start: int, end: int, following: str) -> bool:
    """Whether the line [start, end) of a text goes on in the `following` line.

    It does after a comma and after the bare number of a list item. A longer line without a mark at
    its end does if the next one begins in lower case, or if it is as long as a full line.
    """
    line = text[start:end]
    if _BARE_NUMBER.fullmatch(line) or line[-1] in COMMAS:
        return True
    last = line.rstrip(_CLOSERS)[-1:]
    ended = not last or last in ":：" or _TERMINALS.fullmatch(last) is not None
    if ended or len(line) < SHORT_LINE or is_unspaced(last):
        return False
    return following[0].islower() or len(line) >= FULL_LINE


# ---- sentences -----------------------------------------------------------------------------------


def _sentences_of_block(text: str, start: int, end: int, units: _Units) -> list[Span]:
    spans = []
    at = start
    while (match := _TERMINALS.search(text, at, end)) is not None:
        at = match.end()
        inside = units.end_around(match.start() + 1)
        if inside is not None:
            at = max(at, inside)
            continue
        closing = _CLOSING.match(text, at, end)
        if closing is not None and not _opens(text, closing.start(), closing.end(), start, end):
            at = closing.end()
        if _ends_sentence(text, start, match, at, end):
            spans.append(_trimmed(text, start, at))
            start = at
            while start < end and text[start].isspace():
                start += 1
    if start < end:
        spans.append((start, end))
    return spans


def _opens(text: str, at: int, after: int, start: int, end: int) -> bool:
    """Whether the marks [at, after) that could close a quote or emphasis open one instead.

    They do if a letter follows directly and the sentence has no such mark before them.
    """
    follows = after < end and (text[after].isalnum() and not is_unspaced(text[after]))
    return follows and text[at] not in text[start:at]


def _ends_sentence(text: str, start: int, match: re.Match, at: int, end: int) -> bool:
    """Whether the sentence that begins at `start` ends with these marks and the closers to `at`."""
    marks = match[0]
    if at == end:
        return True
    following = text[at]
    if any(mark in _ALWAYS for mark in marks):
        return _full_mark_ends(text, match, at, following)
    before = text[match.start() - 1] if match.start() > start else " "
    unspaced = is_unspaced(before) or is_unspaced(following)
    if not following.isspace() and not (unspaced and (marks[-1] in "!?" or is_unspaced(before))):
        return False
    if not following.isspace() and marks[-1] in ".…" and not is_unspaced(following):
        return False
    word = _FIRST_WORD.match(text, at, end)
    first = (word[1] if word else None) or ""
    if at > match.end() and first[:1].islower():  # "Why?" she asked
        return False
    if marks[-1] in ";\u037e":
        return "\u0370" <= before <= "\u03ff"  # asks in Greek
    if "…" in marks or marks.endswith(".."):
        return not first[:1].islower() and not is_unspaced(following)
    if marks != ".":
        return True
    return _stop_ends(text, start, match.start(), first)


def _full_mark_ends(text: str, match: re.Match, at: int, following: str) -> bool:
    """Whether a mark that needs no space after it ends a sentence."""
    if following in COMMAS:
        return False
    before = text[match.start() - 1 : match.start()]
    if match[0] == "．" and before.isdecimal() and following.isdecimal():
        return False
    quoted = at > match.end() and text[at - 1] in "」』"
    return not (quoted and following in "とっ")  # Japanese: he said 「...」


def _stop_ends(text: str, start: int, stop: int, first: str) -> bool:
    """Whether a single `.` ends the sentence that begins at `start`.

    Args:
      stop: the place of the `.`.
      first: the first word after it, or a digit; "" if neither follows.
    """
    sentence = text[start : stop + 1]
    if _BARE_NUMBER.fullmatch(sentence) or _NUMBER_AFTER_COLON.search(sentence[-40:]):
        return False
    match = _WORD_BEFORE.search(text, max(start, stop - 25), stop)
    word = match[0] if match else ""
    lowered = word.lower()
    is_start = first.lower() in _STARTERS and not first[:1].islower()
    if lowered.isdecimal():
        return not (len(lowered) < 3 and first.lower() in _MONTHS)
    if lowered in ("г", "в") and not text[:stop].rstrip("гв ")[-1:].isdecimal():
        return False
    if lowered in _BEFORE_NUMBER and (first.isdecimal() or word in ("pp", "p")):
        return False
    if lowered in _BEFORE_NAME and not (lowered == "v" and first.isdecimal()):
        return False
    if len(word) == 1 and word.isalpha() and not is_unspaced(word):
        return is_start
    if lowered in _MAY_END:
        if first[:1].islower() or first.isdecimal() or not first:
            return False
        return is_start or lowered in ("etc", "a.m", "p.m", "am", "pm") or not word.isascii()
    if "." in word and re.fullmatch(r"(?:[^\W\d_]\.)+[^\W\d_]", word):  # an acronym
        return is_start
    return True


def _without_wordless(text: str, spans: Sequence[Span]) -> list[Span]:
    """The spans, where those without a letter or digit have joined the one before (or after)."""
    joined: list[Span] = []
    waiting: int | None = None  # where pieces begin that have nothing before them to join
    for start, end in spans:
        has_word = any(character.isalnum() for character in text[start:end])
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
    piece = text[start:end].rstrip(_CLOSERS)
    if piece and piece[-1] in _CLAUSE_MARKS:
        return True
    # a space between clauses of a script that has no spaces between words
    return end < at and _SPACED_CLAUSES.match(text[end - 1]) is not None
