// The annotator's comment on an item and the flag for the lead of the study, on all pages. They are parts of the document,
// and missing while the comment is blank or the item is not flagged.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = FG.$;

  const kept = (doc, keys) => Object.fromEntries(keys.filter((key) => key in doc).map((key) => [key, doc[key]]));

  // The notes of a document, as part of another document.
  FG.keptNotes = (doc) => kept(doc, ["comment", "flag"]);

  // The judgement that none of the outputs is acceptable, as part of another document.
  FG.keptAllBad = (doc) => kept(doc, ["all-bad"]);

  // Listen to the fields. `commit(doc => changed doc, key)` changes the document; changes with the same key are one step.
  FG.addNotes = function (commit) {
    $("flag").addEventListener("change", ({ target }) =>
      commit(({ flag, ...rest }) => (target.checked ? { ...rest, flag: true } : rest)),
    );
    if (!$("comment")) return;
    $("comment").addEventListener("input", ({ target }) =>
      commit(
        ({ comment, ...rest }) => (FG.strip(target.value) ? { ...rest, comment: target.value } : rest),
        "comment",
      ),
    );
  };

  // Show the notes of a document. Blank text that is being typed stays.
  FG.showNotes = function (doc) {
    const field = $("comment"),
      shown = doc.comment || "";
    $("flag").checked = Boolean(doc.flag);
    if (!field || field.value === shown) return;
    if (!shown && field === document.activeElement && !FG.strip(field.value)) return;
    field.value = shown;
  };
})(window.FG);
