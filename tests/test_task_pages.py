"""The pages in each task's folder are those that the library writes."""

import re
from pathlib import Path

import pytest
from page_helpers import QA, opened, press, reload

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from interface_html import command
from interface_html.task_pages import TaskPagesSettings, task_pages, write_task_pages
from interface_html.tasks import FeedbackTask, feedback_of

TASKS = Path(__file__).parents[1] / "tasks"
NAMES = sorted(path.parts[-3] for path in TASKS.glob("*/interface_html/schema.js"))


@pytest.mark.parametrize("name", NAMES)
def test_the_pages_of_a_task_are_up_to_date(name):
    """If this fails: fgrlhf feedback task_pages NAME."""
    task = feedback_of(name)
    written = {path: path.read_text(encoding="utf-8") for path in task.folder.glob("*.html")}
    assert written == task_pages(task)


@pytest.mark.parametrize("name", NAMES)
def test_the_pages_of_a_task_load_files_that_exist(name):
    for path, text in task_pages(feedback_of(name)).items():
        addresses = re.findall(r'(?:src|href)="([^"#]+)"', text)
        assert len(addresses) > 8
        assert all((path.parent / address).is_file() for address in addresses)


def test_the_command_takes_the_task_first(tmp_path, capsys):
    write_json(tmp_path / "rows.json", [{"id": "t", "prompt": "Say", "response": "Hello."}])
    out = tmp_path / "items.json"
    command.main(["items", "detoxification", f"source={tmp_path}/rows.json", f"out={out}"])
    assert capsys.readouterr().out == f"{out}: 1 item\n"
    with pytest.raises(SystemExit):
        command.main(["pages", "--help"])
    assert "  task" in capsys.readouterr().out
    with pytest.raises(UserError, match="`mail` is not a program"):
        command.main(["mail", "detoxification"])


def test_the_command_writes_them(tmp_path, monkeypatch, capsys):
    task = FeedbackTask(QA.schema, QA.format, tmp_path)
    monkeypatch.setattr("interface_html.task_pages.feedback_of", lambda name: task)
    write_json(tmp_path / "schema.js", {})
    write_task_pages(TaskPagesSettings(task="qa_feedback"))
    assert sorted(path.name for path in tmp_path.glob("*.html")) == [
        "annotation.html",
        "comparison.html",
    ]
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_the_page_of_another_task_opens_from_disk(chromium, tmp_path):
    page = feedback_of("detoxification").folder / "annotation.html"
    item = {"id": "t", "prompt": "Say", "response": "Hello there. You fool! Bye."}
    write_json(tmp_path / "items.json", [item])
    with opened(chromium, where=page) as tab:
        tab.set_input_files("#file", tmp_path / "items.json")
        tab.wait_for_selector("#work:not([hidden])")
        assert tab.inner_text("#item-title") == "Say"
        assert not tab.is_visible("#sources")
        press(tab, "n", "Control+Enter")
        assert "Submitted" in tab.inner_text("#message")
        reload(tab)
        assert "1 done" in tab.inner_text("#position")
