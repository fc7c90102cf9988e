"""scripts/mutations.py: every mutation applies to the code as it is, and a small one is caught."""

import pytest

from fgrlhf.base.errors import UserError
from scripts import mutations

ADD = {"file": "adding.py", "text": "a + b", "becomes": "a - b", "wrong": "subtracts"}
TESTS = """from adding import add

def test_zero():
    assert add(1, 0) == 1

def test_sum():
    assert add(1, 2) == 3

def test_broken():
    assert False
"""


@pytest.mark.parametrize("name, mutation", mutations.read_mutations().items())
def test_each_applies_once_and_names_tests_that_exist(name, mutation):
    source = (mutations.ROOT / mutation.file).read_text(encoding="utf-8")
    assert mutations.mutated(source, mutation) != source
    for file in mutation.tests.partition(" -k ")[0].split():
        assert (mutations.ROOT / file.partition("::")[0]).is_file()


def test_a_mutation_is_caught_by_the_first_test_that_fails_and_then_undone(tmp_path):
    (tmp_path / "adding.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "test_adding.py").write_text(TESTS)
    wrong = mutations.Mutation(**ADD, tests="test_adding.py")
    with mutations.PytestServer(tmp_path) as tests:
        assert mutations.catching_test(tests, wrong, wrong.tests) == "test_adding.py::test_sum"
        assert mutations.catching_test(tests, wrong, "test_adding.py -k zero or one") is None
        with pytest.raises(UserError, match="no test ran"):
            mutations.catching_test(tests, wrong, "test_adding.py -k nothing")
        catching = {"right": "test_adding.py::test_sum", "always": "test_adding.py::test_broken"}
        assert mutations.failing_anyway(tests, catching) == ["always"]
    assert (tmp_path / "adding.py").read_text() == "def add(a, b):\n    return a + b\n"


@pytest.mark.parametrize("source", ["a * b", "a + b + (a + b)"])
def test_a_text_that_is_not_there_once_is_refused(source):
    with pytest.raises(UserError, match="must be there once"):
        mutations.mutated(source, mutations.Mutation(**ADD, tests=""))
