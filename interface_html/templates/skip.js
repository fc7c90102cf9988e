// Items that cannot be judged: the dialog that asks for the reason, and the note on a skipped item. As in skips.py.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = FG.$,
    { t } = FG;
  const LONGEST_TEXT = 1000;
  const REASONS = [
    { name: "cannot-be-judged", label: t("Nothing here can be judged") },
    { name: "broken-text", label: t("The text is broken or cut off") },
    { name: "offensive", label: t("I do not want to read this") },
    { name: "language", label: t("Not in a language that I know") },
    { name: "unsure", label: t("I am not sure how to judge it") },
    { name: "other", label: t("Another reason"), needs_text: true },
  ];

  FG.skipReasons = (schema) => schema.skip_reasons || REASONS;

  // The label of a reason as a node: the task's text, or that of a default reason.
  const labelNode = (schema, reason) => (schema.skip_reasons ? FG.own(reason.label) : reason.label);

  // The rules that {reason, text} breaks: [{field, reason}].
  FG.skipProblems = function (schema, { reason, text }) {
    const known = FG.skipReasons(schema).find((one) => one.name === reason),
      problem = (field, why) => [{ field, reason: why }];
    if (!known) return problem("reason", "choose one of the reasons");
    if (FG.points(text).length > LONGEST_TEXT)
      return problem("text", `is too long: at most ${LONGEST_TEXT} characters`);
    return known.needs_text && !FG.strip(text) ? problem("text", "is blank: say what the reason is") : [];
  };

  function reasonNode(schema, reason, i) {
    const input = FG.el("input", { type: "radio", name: "skip-reason", value: reason.name });
    return FG.el("label", { class: "choice" }, input, FG.el("span", {}, labelNode(schema, reason)), FG.el("kbd", {}, i + 1));
  }

  // Ask why the item is skipped. `skip({reason, text})` is called with an answer that keeps the rules.
  FG.askSkip = function (schema, skip) {
    const dialog = $("skip-dialog"),
      reasons = FG.skipReasons(schema);
    const text = FG.el("input", { type: "text", id: "skip-text", maxlength: LONGEST_TEXT, autocomplete: "off" }),
      problem = FG.el("p", { role: "alert", class: "bad" });
    const radios = () => [...dialog.querySelectorAll("input[type=radio]")];

    function confirm() {
      const chosen = radios().find((radio) => radio.checked),
        answer = { reason: chosen ? chosen.value : "", text: FG.strip(text.value) },
        [wrong] = FG.skipProblems(schema, answer);
      if (!wrong) {
        dialog.close();
        skip(answer);
        return;
      }
      problem.textContent = wrong.field === "text"
          ? t("The explanation {problem}.", { problem: FG.reason(wrong.reason) })
          : t("Choose a reason.");
      (wrong.field === "text" ? text : radios()[0]).focus();
    }

    // Digits choose a reason, Enter confirms.
    dialog.onkeydown = function (event) {
      const isText = event.target === text,
        digit = FG.keyOf(event);
      if (event.key === "Enter" && !event.target.closest("button")) {
        event.preventDefault();
        confirm();
      } else if (!isText && /^[1-9]$/.test(digit) && radios()[digit - 1]) {
        event.preventDefault();
        const radio = radios()[digit - 1];
        radio.checked = true;
        radio.focus();
      }
    };
    dialog.replaceChildren(
      FG.el("h2", { id: "skip-title" }, t("Skip this item")),
      FG.el("p", {}, t("It counts as not done and is left out of the feedback. You can reopen it later.")),
      FG.el(
        "fieldset",
        { class: "reasons" },
        FG.el("legend", {}, t("Why?")),
        reasons.map((reason, i) => reasonNode(schema, reason, i)),
      ),
      FG.el("p", {}, FG.el("label", { for: "skip-text" }, t("Explanation")), text),
      problem,
      FG.el(
        "p",
        { class: "row" },
        FG.el("button", { type: "button", class: "main", id: "skip-confirm", onclick: confirm }, t("Skip")),
        FG.el("button", { type: "button", id: "skip-cancel", onclick: () => dialog.close() }, t("Cancel")),
      ),
    );
    dialog.showModal();
    radios()[0].focus();
  };

  // Say above the item that it is skipped, with a button that calls `reopen`. `skip`: {reason, text}, or null.
  FG.showSkipped = function (schema, skip, reopen) {
    $("skipped").hidden = !skip;
    if (!skip) {
      $("skipped").replaceChildren();
      return;
    }
    const reason = FG.skipReasons(schema).find((one) => one.name === skip.reason),
      label = reason ? reason.label : skip.reason,
      text = skip.text ? `${label}: ${skip.text}` : label;
    FG.refill($("skipped"), [
      FG.el("span", { dir: "auto" }, t("You skipped this item. {reason}.", { reason: text }), " "),
      FG.el("button", { type: "button", "data-key": "reopen", onclick: reopen }, t("Reopen")),
    ]);
  };
})(window.FG);
