// Elements, notices and the texts of an item, on both pages. Text enters the page through textContent only.
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

  // Rebuild a list. The field or button that has focus gets it back: its data-key stays the same.
  FG.refill = function (node, children) {
    const old = document.activeElement,
      key = node.contains(old) && old.dataset.key;
    const field =
      key && old.matches("input[type=text]") ? [old.value, old.selectionStart, old.selectionEnd] : null;
    node.replaceChildren(...children);
    const fresh = key && [...node.querySelectorAll("[data-key]")].find((other) => other.dataset.key === key);
    if (!fresh) return;
    fresh.focus({ preventScroll: true });
    if (field) {
      fresh.value = field[0];
      fresh.setSelectionRange(field[1], field[2]);
    }
  };

  // ---- the texts of an item ----------------------------------------------------------------------------------
  // Show title, context and reference. onPick(source, sentence), numbered as in the data: sources from 1, sentence 0 is
  // the title; null if sentences cannot be picked.
  FG.showTexts = function (schema, row, onPick) {
    const { title, context, reference } = schema.fields,
      sources = FG.sources(schema, row);
    $("sources").hidden = !context && !reference;
    $("work").classList.toggle("no-sources", $("sources").hidden);
    if (reference) $("reference").textContent = row[reference.key] || "There is none for this item.";
    if (context)
      $("context").replaceChildren(
        ...(sources.length
          ? sources.map((source, i) => sourceNode(source, i + 1, onPick))
          : [FG.el("p", { class: "hint" }, `This item has no ${context.noun}.`)]),
      );
    $("item-title").textContent = row[title];
    $("sources").scrollTop = 0;
  };

  function sourceNode(source, number, onPick) {
    const [title, ...sentences] = source;
    return FG.el(
      "article",
      { class: "source" },
      sentenceNode(number, 0, title, onPick),
      FG.el(
        "ul",
        {},
        sentences.map((text, i) => sentenceNode(number, i + 1, text, onPick)),
      ),
    );
  }

  function sentenceNode(source, sentence, text, onPick) {
    const tag = sentence ? "li" : "h4",
      id = `${source}:${sentence}`;
    const words = FG.el("span", { dir: "auto", class: "sentence", "data-sentence-text": id }, text);
    if (!onPick) return FG.el(tag, {}, words);
    words.addEventListener("click", () => {
      if (window.getSelection().isCollapsed) onPick(source, sentence);
    });
    const button = FG.el(
      "button",
      {
        type: "button",
        class: "sid",
        "data-sentence": id,
        "aria-pressed": "false",
        "aria-label": `Sentence ${id}${sentence ? "" : ", title"}`,
        onclick: () => onPick(source, sentence),
      },
      sentence ? String(sentence) : id,
    );
    return FG.el(tag, {}, button, " ", words);
  }
})(window.FG);
