"use strict";
// All samples side by side. Texts of the data enter the page as text nodes only.
const data = JSON.parse(document.getElementById("data").textContent);
const policies = Object.keys(data.policies);
const PER_PAGE = 20;
const MOST_CELLS = 4e6; // of the table that compares two responses word by word
const field = (id) => document.getElementById(id);
let page = 0;

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function options(id, entries) {
  field(id).replaceChildren(...entries.map(([value, text]) => element("option", { value }, text)));
}

function start() {
  options("metric", Object.entries(data.metrics));
  options("of", [...Object.entries(data.policies), ["", "the difference"]]);
  options("reward", [["", "none"], ...Object.entries(data.rewards)]);
  options("first", Object.entries(data.policies));
  options("second", Object.entries(data.policies));
  for (const policy of policies) {
    const box = element("input", { type: "checkbox", value: policy, checked: "" });
    field("shown").append(element("label", { class: "check" }, box, data.policies[policy]));
  }
  for (const [id, option] of [["first", policies.length - 1], ["second", 0]]) {
    field(id).options[option].defaultSelected = true; // a reset selects it again
  }
  if ("reward" in data.metrics) {
    [...field("metric").options].find((one) => one.value === "reward").defaultSelected = true;
  }
  const changed = () => { page = 0; show(); };
  field("controls").addEventListener("input", changed);
  field("controls").addEventListener("submit", (event) => event.preventDefault());
  field("controls").addEventListener("reset", () => setTimeout(changed));
  field("back").addEventListener("click", () => turn(-1));
  field("next").addEventListener("click", () => turn(1));
  show();
}

function turn(by) {
  page += by;
  show();
  field("count").scrollIntoView();
}

// ---- values -------------------------------------------------------------------------------------

// The mean of a metric over a policy's samples of a prompt; null without one.
function mean(prompt, policy, metric) {
  const numbers = (prompt.responses[policy] ?? []).map((one) => one.metrics[metric]).filter(Number.isFinite);
  return numbers.length ? numbers.reduce((sum, number) => sum + number, 0) / numbers.length : null;
}

function difference(prompt, metric) {
  const [first, second] = ["first", "second"].map((id) => mean(prompt, field(id).value, metric));
  return first === null || second === null ? null : first - second;
}

function valueOf(prompt) {
  const [metric, policy] = [field("metric").value, field("of").value];
  return policy === "" ? difference(prompt, metric) : mean(prompt, policy, metric);
}

function text(number, signed = false) {
  if (number === null) return "–";
  const shown = Math.abs(number) >= 100 ? number.toFixed(1) : Number(number.toPrecision(3)).toString();
  return (signed && number > 0 ? "+" : "") + shown.replace("-", "−");
}

// ---- which prompts ------------------------------------------------------------------------------

function shownPolicies() {
  return [...field("shown").querySelectorAll("input")].filter((box) => box.checked).map((box) => box.value);
}

function contains(prompt, words, shown) {
  const texts = [prompt.title, ...prompt.parts.map((part) => part[1]), ...prompt.references];
  for (const policy of shown) texts.push(...(prompt.responses[policy] ?? []).map((one) => one.text));
  const all = texts.join("\n").toLowerCase();
  return words.every((word) => all.includes(word));
}

function searched() {
  return field("search").value.toLowerCase().split(/\s+/).filter(Boolean);
}

function chosenPrompts() {
  const words = searched();
  const shown = shownPolicies();
  const [low, high] = ["low", "high"].map((id) => field(id).valueAsNumber);
  const within = (value) =>
    (Number.isNaN(low) || (value !== null && value >= low)) && (Number.isNaN(high) || (value !== null && value <= high));
  const found = data.prompts.filter((prompt) => within(valueOf(prompt)) && contains(prompt, words, shown));
  const order = field("order").value;
  if (order === "file") return found;
  const sign = order === "up" ? 1 : -1;
  const keyed = found.map((prompt) => [prompt, valueOf(prompt)]);
  keyed.sort((a, b) => (a[1] === null) - (b[1] === null) || sign * (a[1] - b[1])); // without a value: last
  return keyed.map(([prompt]) => prompt);
}

// ---- words that differ --------------------------------------------------------------------------

// Pieces [text, class] of `own`: words that the longest common subsequence with `other` lacks.
function marked(own, other, css) {
  const [a, b] = [own, other].map((one) => one.match(/\s+|[^\s]+/g) ?? []);
  if (a.length * b.length > MOST_CELLS) return [[own, ""]];
  const lengths = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      lengths[i][j] = a[i] === b[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const pieces = [];
  for (let i = 0, j = 0; i < a.length; ) {
    if (j < b.length && a[i] === b[j]) {
      pieces.push([a[i], ""]);
      i++;
      j++;
    } else if (j < b.length && lengths[i][j + 1] >= lengths[i + 1][j]) {
      j++;
    } else {
      pieces.push([a[i], a[i].trim() ? css : ""]);
      i++;
    }
  }
  return pieces;
}

// ---- the page -----------------------------------------------------------------------------------

// A text whose searched words are marked.
function found(plain, words) {
  const parts = [];
  const lower = plain.toLowerCase();
  let from = 0;
  while (words.length && lower.length === plain.length) {
    let [at, long] = [-1, 0];
    for (const word of words) {
      const place = lower.indexOf(word, from);
      if (place >= 0 && (at < 0 || place < at)) [at, long] = [place, word.length];
    }
    if (at < 0) break;
    parts.push(plain.slice(from, at), element("mark", {}, plain.slice(at, at + long)));
    from = at + long;
  }
  return [...parts, plain.slice(from)];
}

// Characters are counted as in Python: as code points, not as halves of surrogate pairs.
function coloured(response, reward, largest, words) {
  const characters = [...response.text];
  const paragraph = element("p", { class: "text" });
  let place = 0;
  for (const [from, to, value, label] of [...response.segments[reward]].sort((a, b) => a[0] - b[0])) {
    const begin = Math.max(from, place);
    const end = to === null ? characters.length : Math.max(to, begin);
    paragraph.append(...found(characters.slice(place, begin).join(""), words));
    const strength = largest ? Math.abs(value) / largest : 0;
    const span = element("span", { class: value ? (value > 0 ? "pos" : "neg") : "under-zero", title: label });
    if (value) span.style.setProperty("--a", (0.15 + 0.85 * strength).toFixed(2));
    span.append(...found(characters.slice(begin, end).join(""), words));
    paragraph.append(span, element("small", { class: "reward" }, text(value, true)));
    place = end;
  }
  paragraph.append(...found(characters.slice(place).join(""), words));
  return paragraph;
}

function largestOf(reward) {
  let largest = 0;
  for (const prompt of data.prompts) {
    for (const one of Object.values(prompt.responses).flat()) {
      for (const segment of one.segments[reward] ?? []) largest = Math.max(largest, Math.abs(segment[2]));
    }
  }
  return largest;
}

function responseText(prompt, policy, sample, largest, words) {
  const response = prompt.responses[policy][sample];
  const [first, second, reward] = ["first", "second", "reward"].map((id) => field(id).value);
  const other = policy === first ? second : policy === second ? first : null;
  const compared = field("words").checked && other !== policy && prompt.responses[other]?.[sample];
  if (compared) {
    const paragraph = element("p", {});
    for (const [piece, css] of marked(response.text, compared.text, policy === first ? "added" : "removed")) {
      paragraph.append(css ? element("span", { class: css }, piece) : piece);
    }
    return paragraph;
  }
  if (!response.text.trim()) return element("p", { class: "missing" }, "empty response");
  if (reward && response.segments[reward]) return coloured(response, reward, largest, words);
  return element("p", {}, ...found(response.text, words));
}

function responseOf(prompt, policy, sample, largest, words) {
  const response = prompt.responses[policy][sample];
  const metric = field("metric").value;
  const several = prompt.responses[policy].length > 1;
  const name = data.policies[policy] + (several ? `, sample ${sample + 1}` : "");
  const chip = element("span", { class: "chip" }, `${data.metrics[metric]} ${text(response.metrics[metric] ?? null)}`);
  const header = element("header", {}, element("b", {}, name), metric ? chip : "");
  const rows = Object.entries(response.metrics).map(([key, value]) =>
    element("tr", {}, element("th", { scope: "row" }, data.metrics[key]), element("td", { class: "number" }, text(value))),
  );
  const table = element("table", {}, element("tbody", {}, ...rows));
  const numbers = element("details", { class: "more numbers" }, element("summary", {}, "All metrics"), table);
  return element("article", {}, header, responseText(prompt, policy, sample, largest, words), numbers);
}

function promptOf(prompt, largest, words, isOpen) {
  const value = valueOf(prompt);
  const isDifference = field("of").value === "";
  const summary = element("summary", {}, element("span", {}, ...found(prompt.title || prompt.id, words)));
  if (field("metric").value) summary.append(element("b", {}, text(value, isDifference)));
  const details = element("details", { class: "sample" }, summary);
  details.open = isOpen;
  for (const [heading, part] of prompt.parts) {
    const body = element("p", {}, ...found(part, words));
    details.append(element("details", { class: "more" }, element("summary", {}, heading || "more"), body));
  }
  for (const reference of prompt.references) {
    details.append(element("p", { class: "reference" }, element("b", {}, "Reference"), " ", ...found(reference, words)));
  }
  const metric = field("metric").value;
  const gain = metric ? difference(prompt, metric) : null;
  if (gain !== null && field("first").value !== field("second").value) {
    const names = ["first", "second"].map((id) => data.policies[field(id).value]);
    details.append(element("p", { class: "hint" }, `${data.metrics[metric]}, ${names[0]} − ${names[1]}: ${text(gain, true)}`));
  }
  const responses = element("div", { class: "responses" });
  for (const policy of shownPolicies()) {
    (prompt.responses[policy] ?? []).forEach((_, sample) => responses.append(responseOf(prompt, policy, sample, largest, words)));
  }
  details.append(responses);
  return details;
}

function show() {
  const chosen = chosenPrompts();
  const pages = Math.max(1, Math.ceil(chosen.length / PER_PAGE));
  page = Math.min(Math.max(page, 0), pages - 1);
  const from = page * PER_PAGE;
  const here = chosen.slice(from, from + PER_PAGE);
  const largest = field("reward").value ? largestOf(field("reward").value) : 0;
  const words = searched();
  field("prompts").replaceChildren(...here.map((prompt, n) => promptOf(prompt, largest, words, n < 3)));
  field("count").textContent = chosen.length
    ? `${chosen.length} of ${data.prompts.length} prompts; these are ${from + 1} to ${from + here.length}`
    : "No prompt fits: change the search or the limits";
  field("page").textContent = `page ${page + 1} of ${pages}`;
  field("back").disabled = page === 0;
  field("next").disabled = page === pages - 1;
}

start();
