"""UIMA CAS as INCEpTION writes it, whose offsets are UTF-16 code units.

The files in `fixtures/uima` were written with dkpro-cassis 0.12. In their text, the second `here`
begins at the code point 15, which is the UTF-16 code unit 16.
"""

import shutil
import sys
from pathlib import Path

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import parse_json
from fgrlhf.cli import data
from fgrlhf.data.importers.registry import import_items
from fgrlhf.data.judgements import Judgement

FILES = Path(__file__).parent / "fixtures" / "uima"
FOLDER = FILES / "annotation" / "doc1.txt"
TEXT = "Odd 🙂 here and here."
AGAIN = (15, 19)


def test_offsets_are_utf16_in_the_files():
    xmi = (FOLDER / "ann.xmi").read_text(encoding="utf-8")
    assert 'begin="16" end="20"' in xmi and TEXT in xmi
    assert TEXT[slice(*AGAIN)] == "here"


def test_a_folder_of_documents():
    pytest.importorskip("cassis")
    (item,), report = import_items(FILES / "annotation", "uima", {"confirmed": True})
    assert (item.prompt.id, item.response) == ("doc1.txt", TEXT)
    assert item.judgements == (
        Judgement("NamedEntity", "FACE", 4, 5, annotator="ann"),
        Judgement("Error", "Error", 6, 10, annotator="ann"),
        Judgement("Error", "wrong", *AGAIN, "major", reason="There.", annotator="ann"),
        Judgement("NamedEntity", "no error", annotator="bob"),
        Judgement("Error", "no error", annotator="bob"),
    )
    assert report.losses == {"relations": 1, "values of the feature NamedEntity.identifier": 1}
    assert report.notes["files INITIAL_CAS, which nobody has annotated"] == 1
    assert report.notes["labels from the feature Error.kind"] == 1


def test_one_layer_and_unfinished_files():
    pytest.importorskip("cassis")
    for layer in ("Error", "webanno.custom.Error"):
        keys = {"layer": layer, "annotator": "x"}
        (item,), report = import_items(FOLDER / "ann.xmi", "uima", keys)
        assert [(j.aspect, j.span, j.annotator) for j in item.judgements] == [
            ("Error", (6, 10), "x"),
            ("Error", AGAIN, "x"),
        ]
        assert report.losses == {}
    (item,), report = import_items(FOLDER / "bob.xmi", "uima")
    assert item.judgements == ()
    assert "not read as `no error`" in next(iter(report.notes))


def test_json():
    pytest.importorskip("cassis")
    (item,), _ = import_items(FILES / "doc1.json", "uima")
    assert item.judgements == (Judgement("Error", "wrong", *AGAIN),)


@pytest.fixture
def file(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "doc")
    return tmp_path / "doc" / "ann.xmi"


@pytest.mark.parametrize(
    "begin, end", [("5", "20"), ("16", "99"), ("-3", "20"), ("90", "99"), ("16", "16")]
)
def test_an_offset_that_is_in_no_text_is_dropped(file, begin, end):
    pytest.importorskip("cassis")
    xmi = file.read_text(encoding="utf-8")
    changed = xmi.replace('begin="16" end="20"', f'begin="{begin}" end="{end}"')
    file.write_text(changed, encoding="utf-8")
    (item,), report = import_items(file, "uima", {"layer": "Error"})
    assert [judgement.span for judgement in item.judgements] == [(6, 10)]
    assert report.dropped_spans == 1


@pytest.mark.parametrize(
    "old, new",
    [
        ('begin="16"', 'begin="a"'),
        ("custom:Error", "custom:Other"),
        ('kind="wrong"', 'other="wrong"'),
        ("</xmi:XMI>", ""),
        ("sofa=", "sofaa="),
        ("<xmi:XMI", "<?xml?><xmi:XMI"),
    ],
)
def test_damaged_files_are_named(file, old, new):
    pytest.importorskip("cassis")
    file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    try:
        import_items(file, "uima")
    except UserError as error:
        assert "is no readable CAS" in str(error) and len(str(error)) < 1000


def test_what_is_missing_is_named(file, tmp_path, monkeypatch):
    (file.parent / "TypeSystem.xml").unlink()
    with pytest.raises(UserError, match="does not exist"):
        import_items(tmp_path / "none.xmi", "uima")
    (tmp_path / "a.zip").write_bytes(b"")
    with pytest.raises(UserError, match="unpack"):
        import_items(tmp_path / "a.zip", "uima")
    monkeypatch.setitem(sys.modules, "cassis", None)
    with pytest.raises(UserError, match="pip install 'dkpro-cassis"):
        import_items(file, "uima")
    monkeypatch.undo()
    pytest.importorskip("cassis")
    with pytest.raises(UserError, match="needs TypeSystem.xml"):
        import_items(file, "uima")


def test_the_command(tmp_path):
    pytest.importorskip("cassis")
    out = tmp_path / "out.jsonl"
    data.main(["import", str(FILES / "annotation"), str(out), "from=uima", "layer=Error"])
    row = parse_json(out.read_text(encoding="utf-8"))
    assert [judgement["start"] for judgement in row["judgements"]] == [6, 15]


def written(folder: Path, texts: dict[str, str], with_types: bool = True) -> None:
    """A JSON file of each text: an error on its last character, and a verdict on all of it."""
    cassis = pytest.importorskip("cassis")
    modes = pytest.importorskip("cassis.typesystem").TypeSystemMode
    types = cassis.TypeSystem()
    error = types.create_type("custom.Error", "uima.tcas.Annotation")
    verdict = types.create_type("custom.Verdict", "uima.cas.AnnotationBase")
    types.create_feature(verdict, "value", "uima.cas.String")
    mode = modes.FULL if with_types else modes.NONE
    for name, text in texts.items():
        cas = cassis.Cas(typesystem=types)
        cas.sofa_string = text
        cas.add(error(begin=len(text) - 1, end=len(text)))
        cas.add(verdict(value="bad"))
        cas.to_json(folder / f"{name}.json", type_system_mode=mode)
    if not with_types:
        types.to_xml(folder / "TypeSystem.xml")


@pytest.mark.parametrize("with_types", [True, False], ids=["types inside", "types beside"])
def test_documents_of_one_folder_and_what_is_said_of_them(tmp_path, with_types):
    """Files with different texts are no annotators of one document."""
    texts = {"one": "𝒳 is 🙂", "two": "So it is."}
    written(tmp_path, texts, with_types)
    items, _ = import_items(tmp_path, "uima")
    assert {item.prompt.id: item.response for item in items} == texts
    for item in items:
        assert item.judgements == (
            Judgement("Verdict", "bad"),
            Judgement("Error", "Error", len(item.response) - 1, len(item.response)),
        )


def test_a_file_without_types_is_named(tmp_path):
    written(tmp_path, {"one": "So it is."}, with_types=False)
    (tmp_path / "TypeSystem.xml").unlink()
    with pytest.raises(UserError, match="no %TYPES, and TypeSystem.xml is not in its folder"):
        import_items(tmp_path, "uima")
