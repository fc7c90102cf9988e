"""The languages of the pages' own texts.

The English sentence is the key of a message, as in gettext. `locales/<code>.json` has the messages
of another language:

    {"name": "Deutsch", "direction": "ltr", "messages": {...}, "reasons": {...}}

`messages` are the texts of the templates and scripts. A message that depends on a number has an
object with a text for each plural category of the language; its key is the English plural.
`reasons` are those of broken rules, which pages and server write in English, with numbered places:
`overlaps error {1}`. `templates/language.js` does the same in the browser.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fgrlhf.base.errors import UserError, shorten

LOCALES = Path(__file__).parent / "locales"
ENGLISH_CODE = "en"
LANGUAGE_HELP = "the language of the pages: en, or a file of interface_html/locales"
ISOLATE, END_ISOLATE = "\u2068", "\u2069"
_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Language:
    """The texts of the pages in a language.

    Args:
      code: its BCP 47 code.
      direction: in which its script is written.
      messages: the translation of each English text, or of its plural forms.
      reasons: the translation of each reason of a broken rule.
    """

    code: str
    direction: Literal["ltr", "rtl"] = "ltr"
    messages: Mapping[str, str | Mapping[str, str]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_english(self) -> bool:
        return self.code == ENGLISH_CODE

    @property
    def catalogue(self) -> dict[str, Mapping]:
        """What the page needs to translate texts."""
        return {"messages": self.messages, "reasons": self.reasons}

    def text(self, english: str, **values: str) -> str:
        """The message with these values. Without a translation it is English.

        Values are in the task's language, so in another language they are isolated: their
        direction does not change the order of the text around them.
        """
        template = self.messages.get(english, english)
        if not isinstance(template, str):
            raise TypeError(f"{english!r} has plural forms, which templates cannot use")

        def value_of(match: re.Match) -> str:
            value = values[match[1]]
            return value if self.is_english else f"{ISOLATE}{value}{END_ISOLATE}"

        return _PLACE.sub(value_of, template)


ENGLISH = Language(ENGLISH_CODE)


def language_codes() -> list[str]:
    """The codes of all languages, English first."""
    return [ENGLISH_CODE, *sorted(path.stem for path in LOCALES.glob("*.json"))]


def language_of(code: str) -> Language:
    """The language with this code. Raises `UserError` if there is none."""
    if code not in language_codes():
        raise UserError(
            f"language={shorten(code, 40)}: the pages are not translated into it: set"
            f" language={' or language='.join(language_codes())}, or add"
            " interface_html/locales/<language>.json"
        )
    if code == ENGLISH_CODE:
        return ENGLISH
    stored = json.loads((LOCALES / f"{code}.json").read_text(encoding="utf-8"))
    return Language(code, stored["direction"], stored["messages"], stored["reasons"])
