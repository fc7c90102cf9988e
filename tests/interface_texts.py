"""The texts of the feedback pages in the sources, and a made-up language from right to left."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from interface_html.languages import LOCALES, Language
from interface_html.render import TEMPLATES

PACKAGE = Path(__file__).parents[1] / "interface_html"
STRING = r'"((?:[^"\\]|\\.)*)"'
MESSAGE = re.compile(rf"\bt\(\s*{STRING}")
PLURALS = re.compile(rf"\btn\(\s*{STRING},\s*{STRING}")
COMPUTED = re.compile(r"\btn?\((?!\s*\")\S*")  # calls whose message is no string
PLACE = re.compile(r"\{(\w+)\}")
# scripts with rules, whose reasons are English: strings in them that are no reasons
RULES = ("rules.js", "ratings.js", "suggestions.js")
NO_REASONS = {
    "use strict",
    "output {1}",
    "error type",
    "earlier text",
    "output ratings",
    "out of range",
}
HEBREW = "אבגדהוזחטיכלמנסעפצקרשתםןףץ"


def sources() -> Iterator[tuple[str, str]]:
    """The names and texts of the templates and scripts."""
    for path in sorted(TEMPLATES.iterdir()):
        if path.suffix in (".js", ".j2"):
            yield path.name, path.read_text(encoding="utf-8")


def messages() -> tuple[set[str], set[str]]:
    """The English messages: those without plural forms, and the plurals of those with them."""
    plain: set[str] = set()
    plural: set[str] = set()
    for _, text in sources():
        plain.update(json.loads(f'"{match}"') for match in MESSAGE.findall(text))
        plural.update(json.loads(f'"{many}"') for _, many in PLURALS.findall(text))
    return plain, plural


def numbered(parts: list[str]) -> str:
    """The text of a template with numbered places between its parts."""
    text = parts[0]
    for number, part in enumerate(parts[1:], start=1):
        text += f"{{{number}}}{part}"
    return text


def script_strings(text: str) -> Iterator[str]:
    """The strings of a script. Those in backquotes have numbered places."""
    at = 0
    while at < len(text):
        if text.startswith("//", at):
            at = text.index("\n", at)
        elif text[at] == '"':
            match = re.compile(STRING).match(text, at)
            assert match, text[at : at + 80]
            yield match[1].replace('\\"', '"')
            at = match.end()
        elif text[at] == "`":
            parts, inner, at = _template(text, at + 1)
            yield numbered(parts)
            for code in inner:
                yield from script_strings(code)
        else:
            at += 1


def _template(text: str, at: int) -> tuple[list[str], list[str], int]:
    """The parts of a template, the code between them, and the place after its end."""
    parts, inner = [""], []
    while text[at] != "`":
        if text[at] == "\\":
            parts[-1] += text[at + 1]
            at += 2
        elif text.startswith("${", at):
            start, depth = at + 2, 1
            at = start
            while depth:
                depth += {"{": 1, "}": -1}.get(text[at], 0)
                at += 1
            inner.append(text[start : at - 1])
            parts.append("")
        else:
            parts[-1] += text[at]
            at += 1
    return parts, inner, at + 1


def rule_reasons() -> set[str]:
    """The reasons in the scripts with rules: their strings that have several words."""
    found = set()
    for name in RULES:
        strings = script_strings((TEMPLATES / name).read_text(encoding="utf-8"))
        found.update(text for text in strings if re.search(r"\w \w|\w \{|\} \w", text))
    return {text for text in found if text not in NO_REASONS and ".error type" not in text}


def all_strings() -> set[str]:
    """All strings of the scripts that give reasons and of interface_html's modules."""
    found: set[str] = set()
    for name in (*RULES, "skip.js", "panels.js"):
        found.update(script_strings((TEMPLATES / name).read_text(encoding="utf-8")))
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.add(_numbered_fstring(node))
    return found


def _numbered_fstring(node: ast.JoinedStr) -> str:
    parts = [""]
    for value in node.values:
        if isinstance(value, ast.Constant):
            parts[-1] += str(value.value)
        else:
            parts.append("")
    return numbered(parts)


def places(text: str) -> set[str]:
    return set(PLACE.findall(text))


def pseudo(text: str) -> str:
    """The text with Hebrew letters instead of Latin ones; its places stay."""
    letters = {chr(ord("a") + i): letter for i, letter in enumerate(HEBREW)}
    parts = re.split(r"(\{\w+\})", text)
    return "".join(
        part if PLACE.fullmatch(part) else "".join(letters.get(c.lower(), c) for c in part)
        for part in parts
    )


def pseudo_language() -> Language:
    """Hebrew by its code: each Latin letter of the interface's texts is a Hebrew one."""
    stored = json.loads((LOCALES / "ar.json").read_text(encoding="utf-8"))
    translated = {
        key: pseudo(key) if isinstance(value, str) else {"other": pseudo(key)}
        for key, value in stored["messages"].items()
    }
    return Language("he", "rtl", translated, {key: pseudo(key) for key in stored["reasons"]})
