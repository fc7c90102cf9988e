// Why an error is marked, in the annotator's words: a field on the card of each mark whose kind asks for a reason.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const { t } = FG;
  const KEY = /^errors-(\d+)-reason$/;

  // The reason that a mark keeps when its kind changes to `kind`, as part of the new mark.
  FG.keptReason = (error, kind) =>
    error && "reason" in error && FG.reasonOf(kind) !== "none" ? { reason: error.reason } : {};

  // The field of a mark; null if its kind asks for no reason. Its listeners depend on `i` only: see FG.morph.
  FG.reasonField = function (page, error, i) {
    const kind = FG.kind(page.schema, error["error type"]),
      asked = FG.reasonOf(kind);
    if (asked === "none") return null;
    const field = FG.el("textarea", {
      "data-key": `errors-${i}-reason`,
      rows: "2",
      dir: "auto",
      "aria-label": kind.positive
        ? t("Reason for liked span {n}", { n: i + 1 })
        : t("Reason for error {n}", { n: i + 1 }),
      "aria-required": String(asked === "required"),
      onfocus: () => page.activate("errors", i, true),
      oninput: (event) => page.typeReason(i, event.target.value),
    });
    field.value = error.reason || "";
    const label = asked === "required" ? t("Reason (required)") : t("Reason (optional)");
    return FG.el("label", { class: "reason" }, label, field);
  };

  FG.addReasons = function (page) {
    // The typed text is the reason; the mark has none while it is blank.
    page.typeReason = function (i, text) {
      const { reason, ...rest } = page.doc.errors[i],
        error = FG.strip(text) ? { ...rest, reason: text } : rest;
      page.change({ errors: FG.replaced(page.doc.errors, i, error) }, `reason-${i}`);
    };

    // Show the stored reason in the field that has the focus, after undo and redo.
    page.refreshReason = function () {
      const field = document.activeElement,
        [, i] = KEY.exec((field && field.dataset.key) || "") || [];
      if (i) field.value = page.doc.errors[Number(i)].reason || "";
    };
  };
})(window.FG);
