// The annotator's comment on an item, on all pages. It is part of the document, and missing while it is blank.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = FG.$;

  // The comment of a document, as part of another document.
  FG.keptComment = (doc) => ("comment" in doc ? { comment: doc.comment } : {});

  // The judgement that none of the outputs is acceptable, as part of another document.
  FG.keptAllBad = (doc) => ("all-bad" in doc ? { "all-bad": doc["all-bad"] } : {});

  // Listen to the comment's field, if the page has one. `commit(doc => changed doc)` changes the document.
  FG.addComment = function (commit) {
    if (!$("comment")) return;
    $("comment").addEventListener("input", ({ target }) =>
      commit(({ comment, ...rest }) => (FG.strip(target.value) ? { ...rest, comment: target.value } : rest)),
    );
  };

  // Show the comment of a document. Blank text that is being typed stays.
  FG.showComment = function (doc) {
    const field = $("comment"),
      shown = doc.comment || "";
    if (!field || field.value === shown) return;
    if (!shown && field === document.activeElement && !FG.strip(field.value)) return;
    field.value = shown;
  };
})(window.FG);
