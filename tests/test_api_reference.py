"""The API reference (`make docs`): which modules are public, and whether all of it is documented.

pdoc shows the modules that a package lists in `__all__`, so the tests need no pdoc and no imports.
"""

import ast
from pathlib import Path

import pytest

from scripts import structure

ROOT = Path(__file__).parents[1]
PACKAGES = ("fgrlhf", "sft", "reward_modeling", "interface_html")
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if "tests" not in path.relative_to(ROOT).parts
}
FILES = {structure.module_name(file): file for file in TEXTS}
PUBLIC = [module for package in PACKAGES for module in structure.public_modules(TEXTS, package)]


@pytest.mark.parametrize("file", TEXTS)
def test_every_module_has_a_docstring(file):
    assert ast.get_docstring(ast.parse(TEXTS[file]))


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_a_docstring(module):
    definitions = structure.public_definitions(TEXTS[FILES[module]])
    assert [name for name, node in definitions.items() if not ast.get_docstring(node)] == []


def test_every_package_says_which_of_its_modules_are_public():
    packages = [file for file in TEXTS if file.endswith("/__init__.py")]
    assert [file for file in packages if structure.listed(TEXTS[file]) is None] == []
    assert {"fgrlhf.reward", "fgrlhf.algorithms.protocol", "sft.run_sft"} <= set(PUBLIC)
    assert "fgrlhf.report.page" not in PUBLIC


def test_a_list_without_its_module_is_refused():
    texts = {"a/__init__.py": '"""A."""\n__all__ = ["b", "c"]\n', "a/b.py": "x = 1\n"}
    with pytest.raises(ValueError, match="a/__init__.py needs an `__all__`"):
        structure.public_modules(texts, "a")
    texts["a/c.py"] = "def f(): ...\ndef _g(): ...\nclass H: ...\n"
    assert structure.public_modules(texts, "a") == ["a", "a.b", "a.c"]
    assert list(structure.public_definitions(texts["a/c.py"])) == ["f", "H"]
    texts["a/__init__.py"] = "x = 1\n"
    with pytest.raises(ValueError, match="needs an `__all__`"):
        structure.public_modules(texts, "a")
