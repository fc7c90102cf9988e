// Display parts of the annotation page: the diff, the buttons of the error types, explained problems, help.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = FG.$;

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

  // The changes from a text to its correction, as nodes.
  FG.diffNodes = (text, correction) =>
    FG.diff(text, correction).flatMap(({ op, text: part }) =>
      op === "same" ? FG.visible(part) : [FG.el(op, {}, FG.visible(part))],
    );

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
        ? [FG.el("span", { class: "hint" }, "Nothing yet.")]
        : FG.diffNodes(text, doc["corrected-prediction"])),
    );
    $("reset").disabled = same;
    const warnings = FG.correctionWarnings(schema, row, doc);
    FG.morph(
      $("warnings"),
      warnings.map((warning) => FG.el("li", {}, warning)),
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
          : `missing item ${i + 1} (${FG.kind(schema, entry["error type"]).label})`;
      if (ids && !ids.sentences.length && rest !== "typed")
        reason = "points to no sentence: type 2:4,5 or click sentence numbers";
      let what = "";
      if (["explanation", "typed"].includes(rest)) what = "evidence ";
      else if (["start", "end", "error type", "severity", "reason"].includes(rest)) what = `${rest} `;
      return {
        text: `${name[0].toUpperCase()}${name.slice(1)}: ${what}${reason}.`,
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
      return { text: `The comment ${reason}.`, go: () => $("comment").focus() };
    const where =
      field === "feedback.no-error" ? ["“No error”", "no-error"] : ["The correction", "correction"];
    return { text: `${where[0]} ${reason}.`, go: () => $(where[1]).focus() };
  };

  FG.annotationHelp = function (schema, table) {
    const keys = [
      ["← / → / ↑ / ↓", `move by word and line in the ${schema.fields.noun}`],
      ["Shift+arrow", "select"],
      ["Home / End", "first or last word of the sentence; again: of the previous or next sentence"],
      ["1 … 9", `mark the selection as this kind; on a marked ${schema.unit}: change its kind`],
      ["Shift+1 … 9", "this kind stays on: each selection is marked at once; Esc ends it"],
      ["E / Del", "edit or remove the error under the cursor"],
      ...FG.suggestionHelp(schema.unit),
      ["Alt+← / Alt+→", "move the end of this error; with Shift its start"],
      [". / ,", "where annotations are decided between: go to the next or the previous difference"],
      ["N", "no error, nothing missing"],
      ...FG.severityHelp(schema),
      ...(schema.correction ? [["C", "go to the correction"]] : []),
      ...(schema.fields.context || schema.fields.reference ? [["P", "go to the texts beside"]] : []),
      ["Esc", `back to the ${schema.fields.noun}`],
      ["Ctrl+Z / Ctrl+Shift+Z", "undo, redo"],
      ["Ctrl+Enter", "submit"],
      ["?", "this help"],
    ];
    return [
      FG.el("h3", {}, "Kinds"),
      table([...schema.errors, ...schema.missing].map((kind) => [kind.key, `${kind.label}: ${kind.help}`])),
      FG.el("h3", {}, "Keys"),
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
      ` ${kind.label} `,
      kind.positive ? FG.el("span", { class: "hidden" }, "(liked) ") : null,
      FG.el("kbd", {}, kind.key),
    );
  };

  FG.keepButton = function (page) {
    return FG.el(
      "button",
      {
        type: "button",
        id: "keep",
        title: "The kind that you choose next stays on: each selection is marked at once",
        "aria-pressed": "false",
        onclick: () => page.setKeep(!page.keep),
      },
      "Keep kind on ",
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
