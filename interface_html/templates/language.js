// The interface's texts in the language of the page. The English sentence is the key of a message. The page holds a
// catalogue unless it is English; a message that it lacks is shown in English. See languages.py.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const stored = document.getElementById("messages"),
    { messages, reasons } = stored ? JSON.parse(stored.textContent) : { messages: {}, reasons: {} },
    language = stored ? document.documentElement.lang : "en";
  FG.locale = stored ? language : undefined; // for times: in English, the reader's own
  FG.isRtl = document.documentElement.dir === "rtl";

  // Digits are those of the keyboard in every language, because numbers are typed too.
  const DIGITS = { numberingSystem: "latn", useGrouping: false };
  const numbers = new Intl.NumberFormat(language, { ...DIGITS, maximumFractionDigits: 20 });

  // A number with this many decimal places.
  FG.number = (value, places) =>
    new Intl.NumberFormat(language, {
      ...DIGITS,
      minimumFractionDigits: places,
      maximumFractionDigits: places,
    }).format(value);

  const lists = new Intl.ListFormat(language, { type: "unit", style: "short" });
  FG.list = (texts) => lists.format(texts);

  // Values are often in another language: isolated, their direction does not change the order of the text around them.
  // On an English page, that matters for texts with letters from right to left.
  const RTL_LETTER = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;
  FG.isolated = (text) => (stored || RTL_LETTER.test(text) ? `\u2068${text}\u2069` : text);

  const shown = (value) => (typeof value === "number" ? numbers.format(value) : FG.isolated(value));

  const PLACE = /\{(\w+)\}/g;
  const hasLetters = (template) => /\p{L}/u.test(template.replace(PLACE, ""));

  // Isolated values do not give a text its direction. A message without letters of its own gets a mark that does.
  function fill(template, values) {
    const text = template.replace(PLACE, (place, name) => (name in values ? shown(values[name]) : place));
    return FG.isRtl && !hasLetters(template) ? `\u200f${text}` : text;
  }

  // The message with `values` in its places, such as {n}.
  FG.t = (english, values = {}) => fill(messages[english] ?? english, values);

  const rulesOf = (code) => new Intl.PluralRules(code);
  const plurals = rulesOf(language),
    englishPlurals = rulesOf("en");

  // The message for the number `values.n`. Its key is the English plural.
  FG.tn = function (one, many, values) {
    const forms = messages[many];
    if (forms) return fill(forms[plurals.select(values.n)] ?? forms.other, values);
    return fill(englishPlurals.select(values.n) === "one" ? one : many, values);
  };

  // A text as the beginning of a sentence.
  FG.capital = function (text) {
    const [first = "", ...rest] = text;
    return first.toLocaleUpperCase(language) + rest.join("");
  };

  // ---- reasons of broken rules -------------------------------------------------------------------------------
  // Rules give their reasons in English, on the page and on the server. Each pattern of a reason, with numbered places.
  const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const pattern = (english) =>
    new RegExp(`^${english.split(/\{\d+\}/).map(escaped).join("(.*)")}$`, "su");
  const fixedLength = (english) => english.replace(/\{\d+\}/g, "").length;
  const patterns = Object.keys(reasons)
    .sort((a, b) => fixedLength(b) - fixedLength(a)) // the most specific one first
    .map((english) => [pattern(english), reasons[english]]);

  // A reason in the language of the page; in English if it is not known. A reason may contain another one.
  FG.reason = function (english) {
    for (const [regular, translation] of patterns) {
      const match = regular.exec(english);
      if (!match) continue;
      const values = Object.fromEntries(match.slice(1).map((value, i) => [i + 1, FG.reason(value)]));
      return fill(translation, values);
    }
    return english;
  };

  // ---- texts of the task -------------------------------------------------------------------------------------
  // A text of the task's schema as a node, marked with its language if that is not the page's.
  FG.own = function (text) {
    const own = window.FG_SCHEMA.language || "en";
    if (own === language) return text;
    const node = document.createElement("bdi");
    node.lang = own;
    node.textContent = text;
    return node;
  };
})(window.FG);
