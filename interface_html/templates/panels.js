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

  // Show the changes of the correction, and warnings about them.
  FG.showDiff = function (page) {
    const { schema, doc, row } = page,
      text = row[FG.textKey(schema)];
    const same = doc["corrected-prediction"] === text;
    $("diff").replaceChildren(
      ...(same
        ? [FG.el("span", { class: "hint" }, "Nothing yet.")]
        : FG.diff(text, doc["corrected-prediction"]).map((part) =>
            part.op === "same" ? part.text : FG.el(part.op, {}, part.text),
          )),
    );
    $("reset").disabled = same;
    const warnings = FG.correctionWarnings(schema, row, doc);
    $("warnings").replaceChildren(...warnings.map((warning) => FG.el("li", {}, warning)));
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
      if (ids && !ids.sentences.length)
        reason = "points to no sentence: type 2:4,5 or click sentence numbers";
      const what =
        rest === "explanation" ? "evidence " : ["start", "end", "error type"].includes(rest) ? `${rest} ` : "";
      return {
        text: `${name[0].toUpperCase()}${name.slice(1)}: ${what}${reason}.`,
        go: () => {
          page.activate(list, i);
          const place =
            document.querySelector(`[data-key="${list}-${i}-ids"]`) ||
            document.querySelector(`[data-key="${list}-${i}"]`);
          place.focus();
        },
      };
    }
    const where =
      field === "feedback.no-error" ? ["“No error”", "no-error"] : ["The correction", "correction"];
    return { text: `${where[0]} ${reason}.`, go: () => $(where[1]).focus() };
  };

  FG.annotationHelp = function (schema, table) {
    const keys = [
      ["← / → / ↑ / ↓", `move by word and line in the ${schema.fields.noun}`],
      ["Shift+arrow", "select"],
      ["Home / End", "first or last word of the sentence; again: of the previous or next sentence"],
      ["E / Del", "edit or remove the error under the cursor"],
      ["N", "no error, nothing missing"],
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
        color: kind.color,
        title: kind.help,
        "aria-keyshortcuts": kind.key,
        onclick: () => onclick(kind),
      },
      FG.badge(kind),
      ` ${kind.label} `,
      FG.el("kbd", {}, kind.key),
    );
  };
})(window.FG);
