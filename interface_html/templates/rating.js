// The rating page: the outputs in a random order, each rated on every scale. Values are stored by the outputs' keys.
"use strict";
(function () {
  const FG = window.FG,
    { $, t } = FG,
    schema = window.FG_SCHEMA;
  const { outputs, noun } = schema.fields,
    scales = FG.scales(schema),
    count = outputs.length,
    last = count * scales.length - 1;
  const NOUN = FG.capital(noun),
    names = "ABCDEFGHI";
  let work = null,
    at = 0, // the card with the cursor: one for each output as shown, and each scale
    cards = [], // {output, scale, title, node, sign, takes, update(value), control()}
    deciding = null; // the submissions that an adjudicator decides between

  const isLikert = (scale) => scale.scale === "likert";
  const nameOf = (i) => (count === 1 ? NOUN : t("{noun} {letter}", { noun: NOUN, letter: names[i] }));

  function fresh(item) {
    const given = item.row[FG.RATINGS],
      entries = FG.submittedOn(item.row, "rating");
    if (!given && entries.length) return { ratings: FG.sharedRatings(schema, entries) };
    return { ratings: given ? FG.clone(given) : Object.fromEntries(outputs.map((output) => [output, {}])) };
  }

  // ---- values ------------------------------------------------------------------------------------------------
  const valueOf = ({ output, scale }) => work.doc.ratings[output][scale.name];

  // Set the value of a card; undefined: take it back.
  function rate(card, value, key) {
    const ratings = FG.clone(work.doc.ratings);
    if (value === undefined) delete ratings[card.output][card.scale.name];
    else ratings[card.output][card.scale.name] = value;
    work.commit({ ...work.doc, ratings }, key);
    render();
  }

  // What is wrong with the value of a card, or null. Text that is no number is stored too, so that a reload does not lose it.
  function complaint(card) {
    const value = valueOf(card),
      [low, high] = [FG.lowest(card.scale), FG.highest(card.scale)];
    if (value === undefined) return t("{title} is not rated.", { title: card.title });
    if (Number.isInteger(value) && value >= low && value <= high) return null;
    return t("{title} has “{value}”, which is no whole number from {low} to {high}.", {
      title: card.title,
      value,
      low,
      high,
    });
  }

  function typed(card, text) {
    const value = FG.strip(text);
    if (!value) rate(card, undefined, card.title);
    else rate(card, /^[0-9]{1,6}$/.test(value) ? Number(value) : text.slice(0, 100), card.title);
    const wrong = value && complaint(card);
    FG.say(wrong || "", "bad");
  }

  // ---- cards -------------------------------------------------------------------------------------------------
  function likertCard(card, index) {
    const inputs = [];
    const choices = Array.from({ length: FG.highest(card.scale) }, (_, i) => {
      const value = i + 1;
      const input = FG.el("input", {
        type: "radio",
        name: `card-${index}`,
        value: String(value),
        onfocus: () => moveTo(index),
        onchange: () => rate(card, value),
      });
      inputs.push(input);
      return FG.el("label", { class: "choice" }, input, String(value));
    });
    return {
      nodes: FG.el("div", { class: "likert" }, choices),
      control: () => inputs.find((input) => input.checked) || inputs[0],
      update: (value) => inputs.forEach((input, i) => (input.checked = value === i + 1)),
    };
  }

  function percentCard(card, index) {
    const field = FG.el("input", {
      type: "text",
      inputmode: "numeric",
      autocomplete: "off",
      class: "percent",
      "aria-label": t("{title}, 0 to 100", { title: card.title }),
      onfocus: () => moveTo(index),
      oninput: () => typed(card, field.value),
    });
    const set = () => rate(card, Number(slider.value), card.title);
    const slider = FG.el("input", {
      type: "range",
      min: 0,
      max: 100,
      "aria-label": t("{title}, slider", { title: card.title }),
      onfocus: () => moveTo(index),
      oninput: set,
      onclick: set, // a click on the place where it already is sets this value too
      onkeydown: (event) => [" ", "Enter"].includes(event.key) && !event.ctrlKey && set(),
    });
    return {
      nodes: FG.el("div", { class: "percents" }, slider, field),
      control: () => field,
      update(value) {
        const isNumber = Number.isInteger(value),
          text = value === undefined ? "" : String(value);
        if (field.value !== text) field.value = text;
        field.setAttribute("aria-invalid", String(value !== undefined && complaint(card) !== null));
        slider.value = isNumber ? value : 50;
        slider.classList.toggle("unset", !isNumber);
        slider.setAttribute("aria-valuetext", isNumber ? String(value) : t("not rated"));
      },
    };
  }

  function newCard(output, scale, i, index) {
    const card = { output, scale, title: t("{text}, {scale}", { text: nameOf(i), scale: scale.label }) };
    const { nodes, control, update } = isLikert(scale) ? likertCard(card, index) : percentCard(card, index);
    const of = count === 1 ? null : FG.el("span", { class: "hidden" }, " ", t("of {noun} {letter}", { noun, letter: names[i] }));
    card.sign = FG.el("span");
    card.takes = FG.el("div", { class: "takes", role: "group", "aria-label": t("Submissions"), hidden: !deciding.isOn });
    const anchors = Object.entries(scale.anchors || {}).sort(([a], [b]) => a - b);
    card.node = FG.el(
      "fieldset",
      { class: "pair", "data-card": index, "aria-describedby": `anchors-${index}` },
      FG.el("legend", {}, FG.own(scale.label), of, " ", card.sign),
      nodes,
      card.takes,
      FG.el(
        "p",
        { class: "anchors hint", id: `anchors-${index}` },
        anchors.map(([value, text]) => FG.el("span", {}, FG.own(`${value}: ${text}`))),
      ),
    );
    return Object.assign(card, { control, update });
  }

  function build() {
    cards = [];
    const articles = work.state.order.map((place, i) => {
      const output = outputs[place];
      const own = scales.map((scale, s) => newCard(output, scale, i, i * scales.length + s));
      cards.push(...own);
      const badge = count === 1 ? null : [FG.el("span", { class: "badge", "aria-hidden": "true" }, names[i]), " "];
      return FG.el(
        "article",
        { class: "candidate" },
        FG.el("h3", {}, badge, FG.own(count === 1 ? NOUN : `${NOUN} ${names[i]}`)),
        FG.el("p", { dir: "auto", class: "output" }, FG.visible(work.item.row[output])),
        FG.el("div", { class: "cards" }, own.map(({ node }) => node)),
      );
    });
    $("outputs").classList.toggle("single", count === 1);
    $("outputs").replaceChildren(...articles);
    $("scales").replaceChildren(
      ...scales.map(({ label, help }) => FG.el("div", {}, FG.el("dt", {}, FG.own(label)), " ", FG.el("dd", {}, FG.own(help)))),
    );
    $("rate-hint").textContent = FG.isTouch ? "" : hint();
  }

  function hint() {
    if (scales.some(isLikert))
      return count > 1
        ? t("Numbers rate; up and down move between scales, left and right between the texts.")
        : t("Numbers rate; up and down move between scales.");
    return count > 1
      ? t("Digits go to the field; up and down move between scales, left and right between the texts.")
      : t("Digits go to the field; up and down move between scales.");
  }

  function render() {
    cards.forEach((card, i) => {
      card.update(valueOf(card));
      card.node.classList.toggle("active", i === at);
      card.node.classList.toggle("differs", deciding.differs(i));
      card.sign.replaceChildren(deciding.sign(i));
      FG.refill(card.takes, deciding.buttons(i));
    });
    const rated = cards.filter((card) => complaint(card) === null).length;
    FG.showNotes(work.doc);
    deciding.update();
    $("rated").textContent = t("{n} of {total} ratings given", { n: rated, total: cards.length });
    FG.showStatus(work);
  }

  function moveTo(index) {
    if (index === at) return;
    at = index;
    cards.forEach((card, i) => card.node.classList.toggle("active", i === at));
  }

  // Move to a card, and focus its control.
  function goTo(index) {
    moveTo(Math.max(0, Math.min(index, last)));
    const { node, control } = cards[at];
    control().focus({ preventScroll: true });
    if (!isLikert(cards[at].scale)) control().select();
    node.scrollIntoView({ block: "nearest" });
  }

  // ---- adjudication ------------------------------------------------------------------------------------------
  // What each person rated, in the order in which the outputs are shown.
  function ratingRow() {
    const head = t("Ratings"),
      list = ({ ratings }) =>
        work.state.order.map((place, i) => {
          const values = scales.map(({ name, label }) => t("{title}: {value}", { title: label, value: ratings[outputs[place]][name] }));
          return `${count > 1 ? `${names[i]} – ` : ""}${FG.list(values)}`;
        });
    return { head, cells: deciding.entries.map(list) };
  }

  deciding = new FG.Deciding({
    name: "rating",
    cards: () => cards.length,
    at: () => at,
    values: (i) => deciding.entries.map(({ ratings }) => ratings[cards[i].output][cards[i].scale.name]),
    words: (_, value) => String(value),
    title: (i) => cards[i].title,
    what: (i, value) => t("{title}: {value}", { title: cards[i].title, value }),
    own: (i) => valueOf(cards[i]),
    take: (i, value) => rate(cards[i], value),
    takeAll: ({ ratings }) => {
      work.commit({ ...work.doc, ratings });
      render();
    },
    show: moveTo,
    rows: () => [ratingRow(), ...FG.commentRows(deciding.entries)],
  });

  // ---- keys and submission -----------------------------------------------------------------------------------
  // The card to which an arrow key leads, or -1. Left and right belong to the radio buttons of a single output.
  function target(key) {
    const row = scales.length;
    if (key === "ArrowDown") return Math.min(at + 1, last);
    if (key === "ArrowUp") return Math.max(at - 1, 0);
    const [next, previous] = FG.isRtl ? ["ArrowLeft", "ArrowRight"] : ["ArrowRight", "ArrowLeft"];
    if (key === next && count > 1) return at + row <= last ? at + row : at;
    if (key === previous && count > 1) return at - row >= 0 ? at - row : at;
    return -1;
  }

  function key(event) {
    if (deciding.key(event)) {
      event.preventDefault();
      return;
    }
    const card = cards[at],
      to = target(event.key),
      pressed = FG.keyOf(event),
      digit = /^[0-9]$/.test(pressed) ? Number(pressed) : -1;
    if (to >= 0) goTo(to);
    else if (digit >= 0 && !isLikert(card.scale)) {
      goTo(at); // the digit is typed into the field
      return;
    } else if (digit >= 1 && digit <= FG.highest(card.scale)) {
      rate(card, digit);
      FG.say(t("{title}: {n}.", { title: card.title, n: digit }), "good");
      if (at < last) goTo(at + 1);
    } else if (["Delete", "Backspace"].includes(event.key)) rate(card, undefined);
    else if (event.key === "Escape") $("outputs").focus({ preventScroll: true });
    else return;
    event.preventDefault();
  }

  // Keys in the number fields and on the sliders. A slider keeps its own arrow keys.
  function fieldKey(event, field) {
    if (!$("outputs").contains(field)) return;
    if (event.key === "Escape") $("outputs").focus({ preventScroll: true });
    else if (field.type === "range") return;
    else if (event.key === "Enter") goTo(at + 1);
    else if (deciding.isOn && deciding.key(event)); // letters are no numbers
    else if (target(event.key) >= 0) goTo(target(event.key));
    else return;
    event.preventDefault();
  }

  // The problems to fix before the ratings can be submitted: [{text, go}].
  function findProblems() {
    const problems = [];
    cards.forEach((card, i) => {
      const reason = complaint(card);
      if (reason) problems.push({ text: reason, go: () => goTo(i) });
    });
    return problems;
  }

  const submit = () => FG.submit(work, findProblems);

  function open(next) {
    work = next;
    at = 0;
    if (!work.state.order) {
      work.state.order = work.item.order || FG.draw(count);
      work.save();
    }
    if ($("outputs").contains(document.activeElement)) document.activeElement.blur();
    FG.showTexts(schema, work.item.row, null);
    FG.showNotes({});
    deciding.open(work.item.row);
    build();
    render();
  }

  function help(table) {
    const keys = [["↑ / ↓", t("move between scales")]];
    if (count > 1) keys.push(["← / →", t("move between the texts")]);
    if (scales.some(isLikert)) keys.push(["1 / 2 / …", t("rate, and move to the next scale")]);
    if (!scales.every(isLikert))
      keys.push([
        "0–9",
        t("type a percentage; Enter moves to the next scale. On the slider, the arrow keys"),
      ]);
    keys.push(["Delete", t("take a rating back")], ...FG.decidingHelp());
    keys.push(["Ctrl+Z / Ctrl+Shift+Z", t("undo, redo")], ["Ctrl+Enter", t("submit")], ["?", t("this help")]);
    const lead =
      count > 1
        ? t("Rate every {noun} on every scale. Nothing is chosen for you. The texts are in a random order.", { noun })
        : t("Rate the {noun} on every scale. Nothing is chosen for you.", { noun });
    return [
      FG.el("p", {}, lead),
      FG.el("h3", {}, t("Keys")),
      table(keys),
    ];
  }

  $("submit").addEventListener("click", submit);
  FG.addNotes((change, key) => {
    work.commit(change(work.doc), key);
    FG.showStatus(work);
  });
  FG.start("rating", {
    open,
    fresh,
    submit,
    key,
    fieldKey,
    help,
    refresh: render,
    step: (back) => {
      if (work.step(back)) FG.say(back ? t("Undone.") : t("Redone."), "good");
      render();
    },
  });
})();
