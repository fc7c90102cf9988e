// Display parts of the annotation page: the diff, the buttons of the error types, explained problems, help.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = FG.$,
    { t } = FG;

  // The earlier text that an error repeats: [start, end), or null.
  FG.earlierRange = function (schema, points, error) {
    if (!error || FG.kind(schema, error["error type"]).needs !== "earlier text" || !error.explanation)
      return null;
    const before = FG.cut(points, 0, error.start),
      at = before.indexOf(FG.strip(error.explanation));
    if (at < 0) return null;
    const start = FG.points(before.slice(0, at)).length;
    return [start, start + FG.points(FG.strip(error.explanation)).length];
  };

  // Show the changes of the correction, and warnings about them. Nothing is done if neither text nor marks changed.
  let compared = null;
  FG.showDiff = function (page) {
    const { schema, doc, row } = page,
      text = row[FG.textKey(schema)],
      content = JSON.stringify([text, doc]);
    if (content === compared) return;
    compared = content;
    const same = doc["corrected-prediction"] === text;
    $("diff").replaceChildren(
      ...(same
        ? [FG.el("span", { class: "hint" }, t("Nothing yet."))]
        : FG.diffNodes(text, doc["corrected-prediction"])),
    );
    $("reset").disabled = same;
    const warnings = FG.correctionWarnings(schema, row, doc);
    FG.morph(
      $("warnings"),
      warnings.map((warning) => FG.el("li", {}, FG.oneStop(warning))),
    );
  };

  // The problems for the annotator. Evidence that is typed and not accepted is the only problem of that evidence.
  FG.problemsShown = function (problems) {
    const typed = problems
      .filter(({ field }) => field.endsWith(".typed"))
      .map(({ field }) => field.slice(0, -"typed".length));
    return problems.filter(({ field }) => {
      const isEvidence = !/\.(start|end|error type|severity|reason|typed)$/.test(field);
      return !(isEvidence && typed.some((prefix) => field.startsWith(prefix)));
    });
  };

  // The parts of an entry, in the reasons of broken rules.
  const PARTS = {
    explanation: t("evidence"),
    typed: t("evidence"),
    start: t("start"),
    end: t("end"),
    "error type": t("error type"),
    severity: t("severity"),
    reason: t("reason"),
  };

  // The text of a broken rule for the annotator, and a function that goes to its place.
  FG.explained = function (page, { field, reason }) {
    const { schema, doc } = page;
    const [, list, number, rest] = /^feedback\.(errors|missing-info)\[(\d+)\]\.?(.*)$/.exec(field) || [];
    if (list) {
      const i = Number(number),
        entry = doc[list][i],
        ids = list === "missing-info" && FG.missingIds(schema, entry);
      const name =
        list === "errors"
          ? page.labelOf(i)
          : t("missing item {n} ({kind})", {
              n: i + 1,
              kind: FG.kind(schema, entry["error type"]).label,
            });
      if (ids && !ids.sentences.length && rest !== "typed")
        reason = "points to no sentence: type 2:4,5 or click sentence numbers";
      const parts = { entry: FG.capital(name), part: PARTS[rest] || "", reason: FG.reason(reason) };
      return {
        text: parts.part ? t("{entry}: {part} {reason}.", parts) : t("{entry}: {reason}.", parts),
        go: () => {
          page.activate(list, i);
          const place =
            (rest === "severity" && document.querySelector(`[data-key^="${list}-${i}-severity-"]`)) ||
            (rest === "reason" && document.querySelector(`[data-key="${list}-${i}-reason"]`)) ||
            document.querySelector(`[data-key="${list}-${i}-ids"]`) ||
            document.querySelector(`[data-key="${list}-${i}"]`);
          place.focus();
        },
      };
    }
    const [, suggestion] = /^feedback\.suggestions\[(\d+)\]$/.exec(field) || [];
    if (suggestion) return page.suggestionProblem(Number(suggestion), reason);
    if (field === "feedback.comment")
      return {
        text: t("The comment {reason}.", { reason: FG.reason(reason) }),
        go: () => $("comment").focus(),
      };
    if (field === "feedback.no-error")
      return {
        text: t("“No error” {reason}.", { reason: FG.reason(reason) }),
        go: () => $("no-error").focus(),
      };
    return {
      text: t("The correction {reason}.", { reason: FG.reason(reason) }),
      go: () => $("correction").focus(),
    };
  };

  FG.annotationHelp = function (schema, table) {
    const isWords = schema.unit === "word";
    const keys = [
      ["← / → / ↑ / ↓", t("move by word and line in the {noun}", { noun: schema.fields.noun })],
      [t("Shift+arrow"), t("select")],
      ["Home / End", t("first or last word of the sentence; again: of the previous or next sentence")],
      ["1 … 9", isWords
          ? t("mark the selection as this kind; on a marked word: change its kind")
          : t("mark the selection as this kind; on a marked sentence: change its kind")],
      ["Shift+1 … 9", t("this kind stays on: each selection is marked at once; Esc ends it")],
      ["E / Del", t("edit or remove the error under the cursor")],
      ...FG.suggestionHelp(schema.unit),
      ["Alt+← / Alt+→", t("move the end of this error; with Shift its start")],
      [". / ,", t("where annotations are decided between: go to the next or the previous difference")],
      ["N", schema.missing.length ? t("no error, nothing missing") : t("no error")],
      ...FG.severityHelp(schema),
      ...(schema.correction ? [["C", t("go to the correction")]] : []),
      ...(FG.hasSources(schema) ? [["P", t("go to the texts beside")]] : []),
      ["Esc", t("back to the {noun}", { noun: schema.fields.noun })],
      ["Ctrl+Z / Ctrl+Shift+Z", t("undo, redo")],
      ["Ctrl+Enter", t("submit")],
      ["?", t("this help")],
    ];
    return [
      FG.el("h3", {}, t("Kinds")),
      table([...schema.errors, ...schema.missing].map((kind) => [kind.key, FG.own(`${kind.label}: ${kind.help}`)])),
      FG.el("h3", {}, t("Keys")),
      table(keys),
    ];
  };

  FG.typeButton = function (kind, onclick) {
    return FG.el(
      "button",
      {
        type: "button",
        class: "type",
        "data-kind": kind.name,
        color: kind.color,
        title: kind.help,
        "aria-keyshortcuts": kind.key,
        onclick: () => onclick(kind),
      },
      FG.badge(kind),
      " ",
      FG.own(kind.label),
      " ",
      kind.positive ? FG.el("span", { class: "hidden" }, `${t("(liked)")} `) : null,
      FG.el("kbd", {}, kind.key),
    );
  };

  FG.keepButton = function (page) {
    return FG.el(
      "button",
      {
        type: "button",
        id: "keep",
        title: t("The kind that you choose next stays on: each selection is marked at once"),
        "aria-pressed": "false",
        onclick: () => page.setKeep(!page.keep),
      },
      t("Keep kind on"),
      " ",
      FG.el("kbd", {}, "Shift"),
    );
  };

  // Show which kind stays on.
  FG.showKinds = function (page) {
    if (!$("keep")) return;
    $("keep").setAttribute("aria-pressed", String(page.keep));
    for (const node of document.querySelectorAll("#types .type")) {
      if (page.keep) node.setAttribute("aria-pressed", String(page.sticky?.name === node.dataset.kind));
      else node.removeAttribute("aria-pressed");
    }
  };
})(window.FG);
