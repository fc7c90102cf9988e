// How serious each error is: the choices on its card, and their keys.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const { t, severities } = FG;

  // The letter after an error's badge in the text; "" without a severity.
  FG.severityLetter = function (schema, error) {
    const chosen = severities(schema).find((severity) => severity.name === error.severity);
    return chosen ? chosen.letter : "";
  };

  // The severity that an error keeps when its kind changes to `kind`, as part of the new error.
  FG.keptSeverity = (error, kind) =>
    error && "severity" in error && !kind.positive ? { severity: error.severity } : {};

  // The choices of an error; null if it has none. Their listeners depend on `i` only: see FG.morph.
  FG.severityButtons = function (page, error, i) {
    const choices = severities(page.schema);
    if (!choices.length || FG.isLiked(page.schema, error)) return null;
    const buttons = choices.map((severity) =>
      FG.el(
        "button",
        {
          type: "button",
          class: "severity",
          "data-key": `errors-${i}-severity-${severity.name}`,
          "aria-pressed": String(error.severity === severity.name),
          "aria-keyshortcuts": severity.key,
          onclick: () => page.setSeverity(i, severity),
        },
        FG.own(severity.label),
        " ",
        FG.el("kbd", {}, severity.key),
      ),
    );
    return FG.el("div", { class: "row", role: "group", "aria-label": t("Severity of error {n}", { n: i + 1 }) }, buttons);
  };

  // The severity whose key was pressed. With Caps Lock, letters are capital without Shift.
  function pressed(schema, event) {
    const letter = FG.keyOf(event).toUpperCase(),
      key = event.shiftKey ? `Shift+${letter}` : letter;
    return severities(schema).find((severity) => severity.key === key);
  }

  FG.severityHelp = (schema) =>
    severities(schema).map((severity) => [severity.key, t("the active error is: {severity}", { severity: severity.label })]);

  FG.addSeverity = function (page) {
    const { schema } = page;

    // Choose a severity. The chosen one is taken back, unless each error needs one.
    page.setSeverity = function (i, { name, label }) {
      const { severity, ...rest } = page.doc.errors[i],
        isOff = severity === name && !schema.severity_required,
        error = isOff ? rest : { ...rest, severity: name };
      page.active = { list: "errors", index: i };
      page.change({ errors: FG.replaced(page.doc.errors, i, error) });
      const parts = { error: FG.capital(page.labelOf(i)), severity: label };
      FG.say(isOff ? t("{error} has no severity.", parts) : t("{error} is {severity}.", parts), "good");
    };

    // Whether the key is that of a severity. It sets the severity of the active error.
    page.severityKey = function (event) {
      const severity = pressed(schema, event),
        { active } = page;
      if (!severity) return false;
      const isMark = active && active.list === "errors";
      if (isMark && FG.isLiked(schema, page.doc.errors[active.index]))
        page.refuse(
          t("Not {severity}: {mark} is no error.", {
            severity: severity.label,
            mark: page.labelOf(active.index),
          }),
        );
      else if (isMark) page.setSeverity(active.index, severity);
      else
        page.refuse(
          t("Not {severity}: move to an error first, in the {noun} or in the list.", {
            severity: severity.label,
            noun: schema.fields.noun,
          }),
        );
      return true;
    };
  };
})(window.FG);
