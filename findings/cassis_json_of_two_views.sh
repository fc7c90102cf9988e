#!/usr/bin/env bash
# Expected: dkpro-cassis reads the JSON that it writes, as it reads its XMI.
# Happens:  If a document has two views with a text, such as a source and its translation, the JSON is
#           complete, but the package refuses it: "A view with name [...] already exists!". XMI of the
#           same document is read back with both texts and their annotations.
# Seen:     dkpro-cassis 0.12.0, 2026-11-30.
# Here:     The importer advises XMI, and reads its first view with a text (fgrlhf/data/importers/uima.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check "dkpro-cassis==0.12.0"

venv/bin/python - <<'PYTHON'
import json
import sys
from importlib.metadata import version

import cassis

print(f"dkpro-cassis {version('dkpro-cassis')}")
types = cassis.TypeSystem()
Error = types.create_type("example.Error", "uima.tcas.Annotation")


def document(*views):
    """A CAS with a text in the first view and in each of these, and an error in each text."""
    cas = cassis.Cas(typesystem=types)
    for view in (cas, *(cas.create_view(name) for name in views)):
        view.sofa_string = "It is odd."
        view.add(Error(begin=6, end=9))
    return cas


def marked(cas):
    names = [view.sofa.sofaID for view in cas.views]
    marks = [cas.get_view(name).select_all_annotations() for name in names]
    return {
        name: [mark.get_covered_text() for mark in found]
        for name, found in zip(names, marks, strict=True)
    }


one = document().to_json()
print(f"JSON of one view, read back: {marked(cassis.load_cas_from_json(one))}")
two = document("translation")
from_xmi = marked(cassis.load_cas_from_xmi(two.to_xmi(), typesystem=types))
print(f"XMI of two views, read back: {from_xmi}")
if from_xmi != {"_InitialView": ["odd"], "translation": ["odd"]}:
    sys.exit("changed: the XMI of two views is not read back as it was written")
content = two.to_json()
print(f"JSON of two views: {sorted(json.loads(content)['%VIEWS'])}")
try:
    cassis.load_cas_from_json(content)
except ValueError as error:
    print(f"it is refused: {error}")
    if "already exists" not in str(error):
        sys.exit("changed: it is refused for another reason")
else:
    sys.exit("changed: the JSON of two views is read")
PYTHON
