"""The texts of an annotation tool's pages, and the spans that people mark in them.

A page can show a text as it is, a document in HTML (HyperText of Label Studio) or the turns of a
dialog (Paragraphs). Its offsets count what it shows, and spans are those of the text in the data.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import unescape
from html.parser import HTMLParser
from typing import Any

from fgrlhf.base.records import RowError, check_object, check_text
from fgrlhf.data.importers.files import optional_text, whole_number
from fgrlhf.data.importers.report import Report
from fgrlhf.data.locate import CODE_POINTS, UTF16
from fgrlhf.data.offsets import UTF16_UNIT, to_code_points

TURN_TEXTS = ("text", "content")  # keys of a turn of a dialog
TURN_NAMES = ("author", "role", "name")
TURN_BREAK = "\n"
# how the editor of Label Studio writes a line break in the text of a region, where it also has
# one between paragraphs and turns (`captureSelection` of its source)
WRITTEN_BREAK = "\\n"

Span = tuple[int, int]


@dataclass(frozen=True)
class ShownText:
    """A text in which people mark.

    Args:
      text: as it is in the written rows.
      turns: of a dialog, the code points [start, end) of each turn in `text`.
    """

    text: str
    turns: tuple[Span, ...] = ()

    @classmethod
    def of(cls, key: str, value: Any) -> "ShownText":
        """A text, or a list of turns `{author, text}`, which become lines `author: text`.

        Raises:
          RowError: it is neither.
        """
        if not isinstance(value, list):
            return cls(check_text(key, value, may_be_blank=True))
        lines: list[str] = []
        turns: list[Span] = []
        place = 0
        for i, item in enumerate(value):
            turn = check_object(f"{key}[{i}]", item)
            text_key = next((name for name in TURN_TEXTS if name in turn), TURN_TEXTS[0])
            text = check_text(f"{key}[{i}].{text_key}", turn.get(text_key), may_be_blank=True)
            names = [turn[name] for name in TURN_NAMES if isinstance(turn.get(name), str)]
            head = f"{names[0]}: " if names else ""
            lines.append(head + text)
            turns.append((place + len(head), place + len(head) + len(text)))
            place += len(head) + len(text) + len(TURN_BREAK)
        return cls(TURN_BREAK.join(lines), tuple(turns))

    def find(
        self, number: int, key: str, value: Mapping[str, Any], report: Report
    ) -> Span | tuple[None, None] | None:
        """The span of a region's `value`: (None, None) if it is about the whole text.

        Returns:
          None if the span is not found; the report then has the problem.
        """
        if value.get("start") is None:
            return None, None
        quote = None
        if isinstance(value.get("text"), str):
            quote = optional_text(f"{key}.value.text", value["text"])
        if self.turns:
            start, end = self._in_turns(f"{key}.value", value)
            spoken = [self.text[max(start, first) : min(end, last)] for first, last in self.turns]
            if quote is not None and _is_same(quote, "".join(spoken)):
                quote = self.text[start:end]  # with the names between the turns
            return report.locate(number, key, self.text, quote, start, end)
        if "globalOffsets" in value or str(value["start"]).startswith("/"):
            return self._in_html(number, key, value, quote, report)
        start = whole_number(f"{key}.value.start", value["start"])
        end = whole_number(f"{key}.value.end", value.get("end"))
        if quote is not None and quote not in self.text:
            quote = quote.replace(WRITTEN_BREAK, "\n")
        return report.locate(number, key, self.text, quote, start, end, (CODE_POINTS, UTF16))

    def _in_turns(self, key: str, value: Mapping[str, Any]) -> Span:
        """A span of Paragraphs: the numbers of two turns, and UTF-16 code units in each."""
        places = []
        for end in ("start", "end"):
            turn = whole_number(f"{key}.{end}", value.get(end))
            if not 0 <= turn < len(self.turns):
                raise RowError(
                    f"{key}.{end}", f"is not the number of one of {len(self.turns)} turns"
                )
            first, last = self.turns[turn]
            offset = whole_number(f"{key}.{end}Offset", value.get(f"{end}Offset"))
            place, _ = to_code_points(self.text[first:last], offset, offset, UTF16_UNIT)
            places.append(first + place if place <= last - first else len(self.text) + 1)
        return places[0], places[1]

    def _in_html(
        self, number: int, key: str, value: Mapping[str, Any], quote: str | None, report: Report
    ) -> Span | None:
        """A span of HyperText: code points of the text without tags, and the marked text.

        A tag `<br>` counts as one (`findGlobalOffset` in the editor's source).
        """
        shown, starts, ends = text_of_html(self.text, breaks=True)
        start = end = None
        if value.get("globalOffsets") is not None:
            places = check_object(f"{key}.value.globalOffsets", value["globalOffsets"])
            start = whole_number(f"{key}.value.globalOffsets.start", places.get("start"))
            end = whole_number(f"{key}.value.globalOffsets.end", places.get("end"))
        elif quote is None:
            raise RowError(f"{key}.value", "has neither globalOffsets nor the marked text")
        if quote is not None and start is not None and end is not None:
            marked = shown[max(start, 0) : max(end, 0)]
            quote = marked if _is_same(quote, marked) else quote
        span = report.locate(number, key, shown, quote, start, end)
        return span and (starts[span[0]], ends[span[1] - 1])


def _is_same(quote: str, marked: str) -> bool:
    """Whether a quote has the marked characters, apart from white space and written breaks."""
    in_quote = "".join(quote.replace(WRITTEN_BREAK, "\n").split())
    return in_quote == "".join(marked.split())


# what is one character for a browser, which reads every line end as a line feed
_CHARACTER = re.compile(r"\r\n?|.", re.DOTALL)


class _TextOfHtml(HTMLParser):
    """Collects the text between tags, with the place of each character in the source."""

    def __init__(self, source: str, breaks: bool):
        super().__init__(convert_charrefs=False)
        self.source = source
        self.breaks = breaks
        self.lines = [0]  # where each line begins
        for place, character in enumerate(source):
            if character == "\n":
                self.lines.append(place + 1)
        self.pieces: list[str] = []
        self.starts: list[int] = []
        self.ends: list[int] = []

    def _place(self) -> int:
        line, column = self.getpos()
        return self.lines[line - 1] + column

    def handle_data(self, data: str) -> None:
        place = self._place()
        for match in _CHARACTER.finditer(data):
            self.pieces.append("\n" if match[0][0] == "\r" else match[0])
            self.starts.append(place + match.start())
            self.ends.append(place + match.end())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "br" and self.breaks:
            place = self._place()
            self.pieces.append("\n")
            self.starts.append(place)
            self.ends.append(place + len(self.get_starttag_text() or ""))

    def _reference(self, reference: str) -> None:
        place = self._place()
        end = place + len(reference)
        end += self.source[end : end + 1] == ";"
        text = unescape(self.source[place:end])
        self.pieces.append(text)
        self.starts += [place] * len(text)
        self.ends += [end] * len(text)

    def handle_entityref(self, name: str) -> None:
        self._reference(f"&{name}")

    def handle_charref(self, name: str) -> None:
        self._reference(f"&#{name}")


@lru_cache(maxsize=16)
def text_of_html(source: str, breaks: bool = False) -> tuple[str, Sequence[int], Sequence[int]]:
    """The text of a document in HTML without its tags, with references such as `&amp;` resolved.

    Args:
      breaks: whether each tag `<br>` is a line feed of the text.

    Returns:
      The text, and for each character the code points [start, end) of `source` that it came from.
    """
    parser = _TextOfHtml(source, breaks)
    parser.feed(source)
    parser.close()
    return "".join(parser.pieces), parser.starts, parser.ends
