"""The texts of the feedback pages in the sources, and a made-up language from right to left."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from interface_html.languages import LOCALES, Language
from interface_html.render import TEMPLATES
from interface_html.tasks import FeedbackTask

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


# ---- what a page shows ---------------------------------------------------------------------------

# Visible texts and labels of the interface: without keys, without texts of the item, and without
# texts of the task, which are marked with their language.
SHOWN = """() => {
    const foreign = 'kbd, [lang]:not(html), script, style, .badge, .sid, #text, #item-title,'
      + ' #reference, .sentence, .output, q, textarea, .said, #who';
    const texts = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode, parent = node.parentElement;
      if (parent.closest(foreign) || !parent.checkVisibility() || !node.data.trim()) continue;
      texts.push(node.data.trim());
    }
    const names = ['aria-label', 'placeholder', 'title', 'aria-valuetext'];
    for (const node of document.querySelectorAll(names.map((name) => `[${name}]`).join())) {
      if (!node.checkVisibility() && !node.matches('input')) continue;
      for (const name of names) {
        const value = node.getAttribute(name);
        if (value && value !== node.getAttribute('aria-keyshortcuts')) texts.push(value);
      }
    }
    return texts;
  }"""
ISOLATED = re.compile("\u2068([^\u2068\u2069]*)\u2069")


def without_values(text: str, known: str) -> str:
    """The text without isolated values that are texts of the item or the task."""
    while True:
        found = ISOLATED.finditer(text)
        match = next((one for one in found if one[1].lower() in known.lower()), None)
        if match is None:
            break
        text = text[: match.start()] + text[match.end() :]
    return text.replace("\u2068", "").replace("\u2069", "")


def english_in(tab, known: str) -> list[str]:
    """The shown texts that have Latin words of their own, in a language that has none."""
    shown = [text for text in tab.evaluate(SHOWN) if text not in known]
    return [text for text in shown if re.search("[A-Za-z]{2}", without_values(text, known))]


# names, typed texts, and the words that the warning about a correction quotes
NAMES = (
    "anna",
    "2:4,5",
    "9:9",
    "record.json",
    "bad file.json",
    "The sat on the mat. It was red. …",
)


def known_texts(task: FeedbackTask, rows) -> str:
    """All texts of the task and of the items, and names that pages show."""
    texts: list[str] = []

    def collect(value) -> None:
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict):
            for part in value.values():
                collect(part)
        elif isinstance(value, list | tuple):
            for part in value:
                collect(part)

    collect(task.schema.model_dump())
    collect(list(rows))
    return "\n".join([*texts, *NAMES])
