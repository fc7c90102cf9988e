// Elements, notices and passages of both pages. Text enters by textContent only.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = (id) => document.getElementById(id);
  FG.$ = $;

  // An element; strings among `children` become text, never markup.
  FG.el = function (tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (key === "color")
        (node.style.setProperty("--c", value), node.style.setProperty("--on-c", FG.inkOn(value)));
      else node.setAttribute(key, value === true ? "" : value);
    }
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined) node.append(child);
    }
    return node;
  };

  FG.luminance = function (color) {
    const [r, g, b] = [1, 3, 5]
      .map((i) => parseInt(color.slice(i, i + 2), 16) / 255)
      .map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  // Black or white, whichever is easier to read on a colour: at least 4.58 : 1 on any.
  FG.inkOn = (color) => (FG.luminance(color) > 0.179 ? "#000000" : "#ffffff");

  FG.badge = (kind) =>
    FG.el("span", { class: "badge", color: kind.color, "aria-hidden": "true" }, kind.letter);

  FG.say = function (text, kind) {
    const node = $("message");
    node.textContent = text;
    node.className = kind || "";
  };

  FG.notice = function (text) {
    $("notice").textContent = text || "";
    $("notice").hidden = !text;
  };

  // Rebuild a list without the reader losing the field or button that has focus: found again by its data-key.
  FG.refill = function (node, children) {
    const old = document.activeElement,
      key = node.contains(old) && old.dataset.key;
    const field =
      key && old.matches("input[type=text]") ? [old.value, old.selectionStart, old.selectionEnd] : null;
    node.replaceChildren(...children);
    const fresh = key && [...node.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key);
    if (!fresh) return;
    fresh.focus({ preventScroll: true });
    if (field) {
      fresh.value = field[0];
      fresh.setSelectionRange(field[1], field[2]);
    }
  };

  // ---- passages ----------------------------------------------------------------------------------------------
  // onPick(passage, sentence), numbered as in the data: passages from 1, sentence 0 the title.
  FG.showSources = function (schema, row, onPick) {
    const passages = FG.passages(schema, row),
      reference = schema.fields.reference && row[schema.fields.reference];
    $("sources").hidden = !schema.fields.passages && !schema.fields.reference;
    $("work").classList.toggle("no-sources", $("sources").hidden);
    $("reference-part").hidden = !schema.fields.reference;
    $("reference").textContent = reference || "There is none for this item.";
    const line = (p, s, text) => {
      const id = `${p}:${s}`;
      const button =
        onPick &&
        FG.el(
          "button",
          {
            type: "button",
            class: "sid",
            "data-sentence": id,
            "aria-pressed": "false",
            "aria-label": `Sentence ${id}${s ? "" : ", title"}`,
            onclick: () => onPick(p, s),
          },
          s ? String(s) : `${p}:0`,
        );
      const words = FG.el("span", { dir: "auto", class: "sentence", "data-sentence-text": id }, text);
      if (onPick)
        words.addEventListener("click", () => {
          if (window.getSelection().isCollapsed) onPick(p, s);
        });
      return FG.el(s ? "li" : "h4", {}, button, onPick ? " " : null, words);
    };
    $("passages").replaceChildren(
      ...(passages.length
        ? passages.map((passage, i) =>
            FG.el(
              "article",
              { class: "passage" },
              line(i + 1, 0, passage[0]),
              FG.el(
                "ul",
                {},
                passage.slice(1).map((text, j) => line(i + 1, j + 1, text)),
              ),
            ),
          )
        : [FG.el("p", { class: "hint" }, "This item has no passages.")]),
    );
    $("question").textContent = row[schema.fields.question];
    $("sources").scrollTop = 0;
  };
})(window.FG);
