"""`fgrlhf feedback new`: pages and task of one's own kinds of error."""

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.load import load_task
from interface_html.command import main
from interface_html.tasks import feedback_of


def test_the_folder_is_a_task_with_pages(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    main(["new", "my_style", "kinds=Fact,Grammar,wrong name", "severities=minor,major"])
    schema = feedback_of("my_style").schema
    assert [kind.name for kind in schema.errors] == ["Fact", "Grammar", "wrong name"]
    # no letter twice, none that is a key of the page or of a severity
    assert [kind.letter for kind in schema.errors] == ["F", "R", "W"]
    assert [severity.key for severity in schema.severities] == ["M", "A"]
    assert schema.severity_required and schema.pages == ("annotation",)
    assert load_task("my_style").name == "my_style"
    assert "interface_html/templates/marking.js" in (
        tmp_path / "my_style/interface_html/annotation.html"
    ).read_text(encoding="utf-8")
    printed = capsys.readouterr().out
    assert 'tags="{Fact.major: ERROR}"' in printed and "dev_file=dev.json" in printed
    with pytest.raises(UserError, match="has pages already"):
        main(["new", "my_style", "kinds=Fact"])


def test_a_folder_of_tasks_and_compared_responses(tmp_path, monkeypatch):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/__init__.py").touch()
    (tmp_path / "tasks/kept").mkdir()
    (tmp_path / "tasks/kept/task.py").write_text("mine = 1\n")
    monkeypatch.chdir(tmp_path)
    main(["new", "kept", "kinds=Fact", "responses=2"])
    folder = tmp_path / "tasks/kept"
    assert (folder / "task.py").read_text() == "mine = 1\n"
    pages = {path.name for path in (folder / "interface_html").iterdir()}
    assert pages == {"schema.js", "annotation.html", "comparison.html"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kinds=Fact"], "task: missing"),
        (["style", "kinds="], "0 are named"),
        (["style", "kinds=a,b,c,d,e,f,g,h,i,j"], "10 are named"),
        (["style", "kinds=Fact,Fact"], "two types have the name 'Fact'"),
        (["Style", "kinds=Fact"], "cannot name a task"),
    ],
)
def test_a_mistake_writes_nothing(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        main(["new", *arguments])
    assert not any(tmp_path.iterdir())
