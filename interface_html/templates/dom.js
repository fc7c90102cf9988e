// Elements, notices and the texts of an item, on both pages. Text enters the page through textContent only.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = (id) => document.getElementById(id),
    { t } = FG;
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

  // The letter of a kind as in its badges: a liked kind has a sign, because colour alone must not tell it.
  FG.letterOf = (kind) => (kind.positive ? `♥${kind.letter}` : kind.letter);

  // The badge of a kind, or of an entry of that kind, with `text` such as I3.
  FG.badge = (kind, text) =>
    FG.el("span", { class: "badge", color: kind.color, "aria-hidden": "true" }, text || FG.letterOf(kind));

  // Whether a finger is the pointer here: then texts name taps, and no keys.
  FG.isTouch = window.matchMedia("(pointer: coarse)").matches;

  // A message with one stop at the end of a sentence: a quoted text or a reason may bring its own.
  FG.oneStop = (text) =>
    text.replace(/([.!?…。][”“"»’]+)\.(?=\s|$)/g, "$1").replace(/(?<!\.)\.\.(?=\s|$)/g, ".");

  // A text that is already quoted, or quotes something, gets no quotation marks.
  FG.quoted = (text) => FG.el(/["“”„«»「」]/.test(text) ? "span" : "q", {}, FG.own(text));

  FG.say = function (text, kind) {
    const node = $("message");
    node.textContent = FG.oneStop(text);
    node.className = kind || "";
    // In a narrow window a long message scrolls: then Tab reaches it, and the arrow keys scroll it.
    if (node.scrollHeight > node.clientHeight + 1) node.tabIndex = 0;
    else node.removeAttribute("tabindex");
  };

  // Whether a dialog is open, whose keys are its own, or the page takes no input.
  FG.isAsking = () => Boolean(document.querySelector("dialog[open], #work[inert]"));

  // ---- keys --------------------------------------------------------------------------------------------------
  // The key of a keyboard event. Keyboards for other scripts, such as Arabic or Cyrillic, type no Latin letters and maybe
  // other digits: there it is what a US keyboard has in that place.
  FG.keyOf = function ({ key, code, shiftKey }) {
    const isOther = /^[^\x00-\x7f]+$/.test(key) && !/\p{Script=Latin}/u.test(key),
      place = /^(?:Key|Digit)([A-Z0-9])$/.exec(code || "");
    if (key === "؟") return "?";
    if (!isOther || !place) return key;
    return shiftKey ? place[1] : place[1].toLowerCase();
  };

  // The bracket of a keyboard event: "[", "]", "}" or null. On keyboards without keys for brackets, the two keys count that
  // a US keyboard has for them, unless they type something else that pages use.
  const BRACKETS = { BracketLeft: "[", BracketRight: "]", "Shift+BracketRight": "}" };
  FG.bracketOf = function ({ key, code, shiftKey }) {
    if (Object.values(BRACKETS).includes(key)) return key;
    const isUsed = /^[a-z0-9.,?]$/i.test(key),
      isCharacter = key.length === 1 || key === "Dead"; // the first key of a letter with an accent
    if (isUsed || !isCharacter) return null;
    return BRACKETS[shiftKey ? `Shift+${code}` : code] || null;
  };

  // Let the page take no input while the server is asked: what was done meanwhile could be lost, or be taken for work on
  // the next item. Returns what `task` returns. Tasks may contain others.
  const WAITING = t("Waiting for the server…"),
    PATIENCE = 1000; // milliseconds until the page says so
  let waits = 0;
  FG.isWaiting = () => waits > 0;
  FG.whileWaiting = async function (task) {
    const field = document.activeElement,
      message = $("message"),
      parts = [$("bar"), $("work"), $("empty")],
      said = setTimeout(() => FG.say(WAITING), PATIENCE);
    waits += 1;
    if (waits === 1 && field.matches("input[type=text]")) field.blur(); // what was typed counts
    for (const part of parts) part.inert = true;
    try {
      return await task();
    } finally {
      clearTimeout(said);
      waits -= 1;
      if (!waits) {
        for (const part of parts) part.inert = false;
        if (message.textContent === WAITING) FG.say("");
        if (document.activeElement === document.body) field.focus({ preventScroll: true });
      }
    }
  };

  // Show a notice, with buttons [label, onclick]; "" hides it.
  FG.notice = function (text, actions = []) {
    $("notice").textContent = FG.oneStop(text || "");
    $("notice").hidden = !text;
    const buttons = actions.map(([label, onclick]) => FG.el("button", { type: "button", onclick }, label));
    $("notice").append(...buttons.flatMap((node) => [" ", node]));
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

  // Make the children of `node` equal to `children`, and keep elements that are there already: a button that is being
  // pressed stays the same button. Elements with different data-key are different. Listeners of kept elements stay, so
  // they must depend on the data-key only.
  FG.morph = function (node, children) {
    const old = [...node.childNodes];
    children.forEach((child, i) => {
      if (i >= old.length) node.append(child);
      else if (!morphed(old[i], child)) old[i].replaceWith(child);
    });
    for (const extra of old.slice(children.length)) extra.remove();
  };

  function morphed(old, fresh) {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) return false;
    if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return true;
    }
    if (old.dataset.key !== fresh.dataset.key) return false;
    for (const { name } of [...old.attributes])
      if (name !== "style" && !fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes)
      if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
    old.style.cssText = fresh.style.cssText; // through the CSSOM, which the content security policy allows
    const isField = old.nodeName === "INPUT" || old.nodeName === "TEXTAREA";
    if (isField && old !== document.activeElement) old.value = fresh.value;
    FG.morph(old, [...fresh.childNodes]);
    return true;
  }

  // Control characters, and characters that change the direction of the text after them. Left as they are, they would
  // show an annotator another text than the one that is judged. Line ends and tabs are ordinary; so are the marks
  // U+200E, U+200F and U+061C, and the joiners, which writing needs.
  const HIDDEN = /[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\ufff9-\ufffb]/;

  // The text as nodes: strings, and an element around each hidden character, which CSS labels with its number. The
  // text content stays the same.
  FG.visible = function (text) {
    if (!HIDDEN.test(text)) return [text];
    const nodes = [];
    let plain = "";
    for (const c of text) {
      if (!HIDDEN.test(c)) {
        plain += c;
        continue;
      }
      const code = c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
      if (plain) nodes.push(plain);
      nodes.push(FG.el("span", { class: "control", "data-code": `U+${code}` }, c));
      plain = "";
    }
    if (plain) nodes.push(plain);
    return nodes;
  };

  // The changes from a text to another one, as nodes.
  FG.diffNodes = (text, other) =>
    FG.diff(text, other).flatMap(({ op, text: part }) =>
      op === "same" ? FG.visible(part) : [FG.el(op, {}, FG.visible(part))],
    );

  // ---- the texts of an item ----------------------------------------------------------------------------------
  // Whether the task has texts to judge an output by.
  FG.hasSources = (schema) => Boolean(schema.fields.context || schema.fields.reference);

  // Show or hide these texts.
  FG.placeSources = function (isShown) {
    $("sources").hidden = !isShown;
    $("work").classList.toggle("no-sources", !isShown);
  };

  // Show title, context and reference. onPick(source, sentence), numbered as in the data: sources from 1, sentence 0 is
  // the title; null if sentences cannot be picked.
  FG.showTexts = function (schema, row, onPick) {
    const { context, reference } = schema.fields,
      sources = FG.sources(schema, row);
    if (reference)
      $("reference").replaceChildren(
        ...(row[reference.key] ? FG.visible(row[reference.key]) : [t("There is none for this item.")]),
      );
    if (context)
      $("context").replaceChildren(
        ...(sources.length
          ? sources.map((source, i) => sourceNode(source, i + 1, onPick, context.noun))
          : [FG.el("p", { class: "hint" }, t("This item has no {source}.", { source: context.noun }))]),
      );
    FG.showTitle(schema, row);
    $("sources").scrollTop = 0;
  };

  function sourceNode(source, number, onPick, noun) {
    const [title, ...sentences] = source;
    return FG.el(
      "article",
      { class: "source" },
      FG.el("p", { class: "source-name" }, FG.own(`${FG.capital(noun)} ${number}`)),
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
    const words = FG.el(
      "span",
      { dir: "auto", class: "sentence", "data-sentence-text": id },
      FG.visible(text),
    );
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
        "aria-label": sentence ? t("Sentence {id}", { id }) : t("Sentence {id}, title", { id }),
        onclick: () => onPick(source, sentence),
      },
      id,
    );
    return FG.el(tag, {}, button, " ", words);
  }
})(window.FG);
