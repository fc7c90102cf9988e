// The comparison page: the outputs in a random order, compared pair by pair or ranked. Choices are stored by the
// outputs' positions in the row.
"use strict";
(function () {
  const FG = window.FG,
    { $, t } = FG,
    schema = window.FG_SCHEMA;
  const pairs = FG.pairs(schema),
    { outputs, noun } = schema.fields,
    count = outputs.length;
  let work = null,
    reading = null, // what the annotator sees of the outputs
    at = 0, // the card with the cursor
    base = null, // the output whose differences from the others are shown
    deciding = null; // the submissions that an adjudicator decides between
  const names = "ABCDEFGHI";
  const order = () => work.state.order; // order()[k]: the output shown as letter k
  const letter = (output) => names[order().indexOf(output)];
  const lettersOf = ({ left, right }) => ({ first: letter(left), second: letter(right) });

  // The mode of the last item is kept, except for items that have a preference: it is shown as pairs.
  function fresh(item, _, store) {
    const { preference } = item.row,
      entries = FG.submittedOn(item.row, "comparison"),
      isRanks = !preference && !entries.length && store.storage.getItem(store.name("mode")) === "ranks";
    const shared = entries.length ? FG.sharedPreference(schema, entries) : pairs.map(() => null);
    const isAllBad = !preference && entries.length > 0 && entries.every((entry) => entry["all-bad"]);
    // where the entries differ about this, it is missing until it is decided
    return {
      preference: preference ? FG.clone(preference) : shared,
      ranks: Array(count).fill(null),
      mode: isRanks ? "ranks" : "pairs",
      ...(isAllBad ? { "all-bad": true } : {}),
    };
  }

  // ---- what was seen -----------------------------------------------------------------------------------------
  function look() {
    if (!reading) return;
    const bottom = Math.min(window.innerHeight, $("choose").getBoundingClientRect().top),
      nodes = $("outputs").querySelectorAll(".output"),
      reached = outputs.map((_, output) => FG.reached(nodes[order().indexOf(output)], bottom));
    reading.look(FG.now(), reached, !document.hidden);
  }

  // Say once for an item that a choice comes before the outputs can have been read.
  function warnEarly() {
    look();
    const unread = FG.unread(work.state.seen, outputs.map((key) => work.item.row[key]));
    if (!unread.length || work.state.warned) return;
    work.state.warned = true;
    const letters = unread.map(letter).sort().join(", ");
    FG.say(t("You chose before you can have read to the end: {letters}. Read on before you submit; this is said once.", { letters }));
  }

  function change(parts) {
    work.commit({ ...work.doc, ...parts });
    render();
  }

  // The pairs as shown. k: the pair's index in the stored preference; turned: whether left and right are swapped there.
  function shown() {
    const list = [];
    for (let i = 0; i < count; i++)
      for (let j = i + 1; j < count; j++) {
        const [left, right] = [order()[i], order()[j]],
          [low, high] = [Math.min(left, right), Math.max(left, right)];
        const k = pairs.findIndex((pair) => pair[0] === low && pair[1] === high);
        list.push({ left, right, k, turned: left > right });
      }
    return list;
  }

  const turn = (value, turned) => (turned && value ? 3 - value : value); // swaps 1 and 2, keeps 0 and null

  function choosePair(i, value) {
    const pair = shown()[i],
      preference = [...work.doc.preference];
    preference[pair.k] = turn(value, pair.turned);
    warnEarly();
    change({ preference, ranks: Array(count).fill(null) });
  }

  function chooseRank(output, rank) {
    const ranks = [...work.doc.ranks];
    ranks[output] = rank;
    warnEarly();
    change({ ranks, preference: FG.fromRanks(pairs, ranks) });
  }

  // Whether the people to decide between differ about whether any output is acceptable.
  const differsAllBad = () => deciding.isOn && !FG.allSame(deciding.entries.map((entry) => Boolean(entry["all-bad"])));

  // The judgement whether no output is acceptable, as part of a document. It is said in so many words where people differ.
  const allBadPart = (isBad) => (isBad || differsAllBad() ? { "all-bad": isBad } : {});

  // Judge that no output is acceptable, or take that back. The preference stays.
  function setAllBad(isBad) {
    const { "all-bad": _, ...rest } = work.doc;
    work.commit({ ...rest, ...allBadPart(isBad) });
    render();
  }

  // ---- adjudication ------------------------------------------------------------------------------------------
  const isByRank = () => work.doc.mode === "ranks";
  const pairTitle = (i) => t("{first} or {second}?", lettersOf(shown()[i]));
  const rankTitle = (i) => t("Rank of {noun} {letter}", { noun, letter: names[i] });

  // The ranking of a preference in letters, such as B > A = C; null if it is none.
  function rankingWords(preference) {
    const ranks = FG.toRanks(schema, preference);
    if (!ranks) return t("no ranking");
    const best = [...order()].sort((a, b) => ranks[a] - ranks[b] || letter(a).localeCompare(letter(b)));
    return best.map((a, i) => (i ? (ranks[a] === ranks[best[i - 1]] ? " = " : " > ") : "") + letter(a)).join("");
  }

  function pairWords(i, value) {
    const { left, right } = shown()[i];
    if (value === 0) return t("Equal");
    return t("{letter} better", { letter: letter(value === 1 ? left : right) });
  }

  // Values on a card are as shown: turned for a pair that is shown the other way round.
  function submittedValues(i) {
    if (isByRank())
      return deciding.entries.map(({ preference }) => {
        const ranks = FG.toRanks(schema, preference);
        return ranks && ranks[order()[i]];
      });
    const { k, turned } = shown()[i];
    return deciding.entries.map(({ preference }) => turn(preference[k], turned));
  }

  function ownValue(i) {
    if (isByRank()) return work.doc.ranks[order()[i]];
    const { k, turned } = shown()[i];
    return turn(work.doc.preference[k], turned);
  }

  function takeAll({ preference, "all-bad": isBad }) {
    const { "all-bad": _, ...rest } = work.doc,
      ranks = isByRank() ? FG.toRanks(schema, preference) : null;
    warnEarly();
    work.commit({
      ...rest,
      ...allBadPart(Boolean(isBad)),
      preference,
      ranks: ranks || Array(count).fill(null),
      mode: ranks ? "ranks" : "pairs", // not every preference is a ranking
    });
    render();
  }

  function decidingRows() {
    const { entries } = deciding,
      rows = [{ head: t("Ranking"), cells: entries.map(({ preference }) => [rankingWords(preference)]) }];
    const values = entries.map((entry) => Boolean(entry["all-bad"]));
    if (values.includes(true))
      rows.push({
        head: t("No {noun} is acceptable", { noun }),
        cells: values.map((value) => [value ? t("yes") : t("no")]),
        values,
        own: () => work.doc["all-bad"] ?? (differsAllBad() ? null : false), // null: not decided
        take: setAllBad,
      });
    return [...rows, ...FG.commentRows(entries)];
  }

  deciding = new FG.Deciding({
    name: "comparison",
    cards: () => (isByRank() ? count : pairs.length),
    at: () => at,
    values: submittedValues,
    words: (i, value) => {
      if (isByRank()) return value === null ? t("no ranking") : String(value);
      return pairWords(i, value);
    },
    title: (i) => (isByRank() ? rankTitle(i) : pairTitle(i)),
    what: (i, value) =>
      isByRank() ? t("{title}: {value}", { title: rankTitle(i), value }) : `${pairTitle(i)} ${pairWords(i, value)}`,
    own: ownValue,
    take: (i, value) => {
      at = i;
      if (isByRank()) chooseRank(order()[i], value);
      else choosePair(i, value);
    },
    takeAll,
    show: (i) => {
      at = i;
      render();
    },
    rows: decidingRows,
  });

  // Switch between pairs and ranks. Choices are kept if they form a ranking.
  function setMode(mode) {
    if (mode === work.doc.mode) return;
    const { preference } = work.doc;
    let ranks = work.doc.ranks;
    if (mode === "ranks" && ranks.includes(null) && !preference.includes(null)) {
      if (FG.brokenTriple(count, pairs, preference)) {
        FG.say(
          t("Your pairs do not form a ranking, so they cannot become ranks. Change the pairs first."),
          "bad",
        );
        render();
        return;
      }
      ranks = FG.toRanks(schema, preference);
    } else if (mode === "ranks" && ranks.includes(null) && preference.some((value) => value !== null)) {
      FG.say(t("Ranks start empty. Your pairs stay until you choose a rank."));
    }
    at = 0;
    work.store.write(work.store.name("mode"), mode);
    change({ mode, ranks });
  }

  // ---- differences between outputs ---------------------------------------------------------------------------
  // Show the words in which the other outputs differ from output `i`; null: show the outputs as they are.
  function showDifferences(i) {
    base = i;
    renderOutputs();
    const buttons = [null, ...order()].map((output) =>
      FG.el(
        "button",
        {
          type: "button",
          "data-key": `base-${output}`,
          "aria-pressed": String(base === output),
          onclick: () => showDifferences(output),
        },
        output === null ? t("None") : letter(output),
      ),
    );
    FG.refill($("differences"), [FG.el("span", {}, t("Differences from")), ...buttons]);
  }

  function nextDifferences() {
    const choices = [null, ...order()];
    showDifferences(choices[(choices.indexOf(base) + 1) % choices.length]);
  }

  function outputNodes(output) {
    const text = work.item.row[outputs[output]];
    if (base === null || base === output) return FG.visible(text);
    return FG.diffNodes(work.item.row[outputs[base]], text);
  }

  function renderOutputs() {
    $("outputs").replaceChildren(
      ...order().map((output, i) =>
        FG.el(
          "article",
          { class: "candidate" },
          FG.el("h3", {}, FG.el("span", { class: "badge" }, names[i]), " ", FG.own(`${FG.capital(noun)} ${names[i]}`)),
          FG.el("p", { dir: "auto", class: "output" }, outputNodes(output)),
        ),
      ),
    );
  }

  function radio(group, label, checked, onchange) {
    const input = FG.el("input", { type: "radio", name: group, "data-key": `${group}-${label}`, onchange });
    input.checked = checked;
    return FG.el("label", { class: "choice" }, input, FG.el("span", {}, label));
  }

  const cardClass = (i) => `pair${i === at ? " active" : ""}${deciding.differs(i) ? " differs" : ""}`;

  function takeButtons(i) {
    const buttons = deciding.buttons(i);
    return buttons.length ? FG.el("div", { class: "takes", role: "group", "aria-label": t("Submissions") }, buttons) : null;
  }

  function cards() {
    if (work.doc.mode === "ranks") {
      return order().map((output, i) =>
        FG.el(
          "fieldset",
          { class: cardClass(i), "data-card": i },
          FG.el("legend", {}, rankTitle(i), " ", deciding.sign(i)),
          FG.el(
            "div",
            { class: "choices" },
            Array.from({ length: count }, (_, r) =>
              radio(`rank-${i}`, String(r + 1), work.doc.ranks[output] === r + 1, () => {
                at = i;
                chooseRank(output, r + 1);
              }),
            ),
          ),
          takeButtons(i),
        ),
      );
    }
    return shown().map((pair, i) => {
      const value = turn(work.doc.preference[pair.k], pair.turned),
        set = (v) => () => {
          at = i;
          choosePair(i, v);
        };
      return FG.el(
        "fieldset",
        { class: cardClass(i), "data-card": i },
        FG.el("legend", {}, t("{first} or {second}?", lettersOf(pair)), " ", deciding.sign(i)),
        FG.el(
          "div",
          { class: "choices" },
          radio(`pair-${i}`, t("{letter} better", { letter: letter(pair.left) }), value === 1, set(1)),
          radio(`pair-${i}`, t("Equal"), value === 0, set(0)),
          radio(`pair-${i}`, t("{letter} better", { letter: letter(pair.right) }), value === 2, set(2)),
        ),
        takeButtons(i),
      );
    });
  }

  function warnings() {
    const { preference } = work.doc;
    if (preference.includes(null) || FG.findCycle(count, pairs, preference)) return [];
    const broken = FG.brokenTriple(count, pairs, preference);
    if (!broken) return [];
    const [a, b, c] = broken.map(letter);
    return [
      t("{a} is at least as good as {b}, and {b} as {c}, but {c} is better than {a}. Is this what you mean?", {
        a,
        b,
        c,
      }),
    ];
  }

  function render() {
    const { mode } = work.doc;
    for (const input of document.querySelectorAll("input[name=mode]")) input.checked = input.value === mode;
    FG.refill($("choices"), cards());
    $("all-bad").checked = Boolean(work.doc["all-bad"]);
    $("all-bad").indeterminate = differsAllBad() && !("all-bad" in work.doc);
    deciding.update();
    $("choose-hint").hidden = FG.isTouch; // it is about keys
    $("choose-hint").textContent =
      mode === "pairs"
        ? t("Up and down move between pairs; 1: the first is better, 2: the second, 0: equally good.")
        : t("Up and down move between {noun}s; 1 to {n} give the rank, 1 is best. Equal ranks are ties.", {
            noun,
            n: count,
          });
    $("warnings").replaceChildren(...warnings().map((warning) => FG.el("li", {}, warning)));
    FG.showNotes(work.doc);
    FG.showStatus(work);
  }

  // Move to a card and focus its first choice.
  const goTo = (i) => () => {
    at = i;
    render();
    document.querySelector(`[data-card="${i}"] input`).focus();
  };

  // The problems to fix before the comparison can be submitted: [{text, go}].
  function findProblems() {
    const { preference, ranks, mode } = work.doc,
      problems = [];
    if (mode === "ranks")
      order().forEach((output, i) => {
        if (ranks[output] === null) problems.push({ text: t("{noun} {letter} has no rank.", { noun: FG.capital(noun), letter: names[i] }), go: goTo(i) });
      });
    if (problems.length) return problems;
    shown().forEach(({ left, right, k }, i) => {
      if (preference[k] === null)
        problems.push({ text: t("{first} or {second} is not decided.", lettersOf({ left, right })), go: goTo(i) });
    });
    if (problems.length) return problems;
    if (differsAllBad() && !("all-bad" in work.doc))
      return [
        {
          text: t("Whether no {noun} is acceptable is not decided.", { noun }),
          go: () => $("deciding").querySelector("tr.differs button").focus(),
        },
      ];
    const cycle = FG.findCycle(count, pairs, preference);
    if (!cycle) return [];
    const chain = [...cycle, cycle[0]].map(letter).join(" > ");
    const i = shown().findIndex((pair) => cycle.includes(pair.left) && cycle.includes(pair.right));
    return [{ text: t("The choices go in a circle: {chain}. Change one of them.", { chain }), go: goTo(i) }];
  }

  function submit() {
    look();
    FG.submit(work, findProblems);
  }

  function key(event) {
    if (deciding.key(event)) {
      event.preventDefault();
      return;
    }
    const ranks = work.doc.mode === "ranks",
      last = (ranks ? count : pairs.length) - 1,
      pressed = FG.keyOf(event).toLowerCase(),
      digit = /^[0-9]$/.test(pressed) ? Number(pressed) : -1;
    const stay = at;
    if (event.key === "ArrowDown") at = Math.min(at + 1, last);
    else if (event.key === "ArrowUp") at = Math.max(at - 1, 0);
    else if (!ranks && digit >= 0 && digit <= 2) {
      choosePair(at, digit);
      at = Math.min(at + 1, last);
    } else if (ranks && digit >= 1 && digit <= count) {
      chooseRank(order()[at], digit);
      at = Math.min(at + 1, last);
    } else if (pressed === "d") nextDifferences();
    else if (pressed === "b") setAllBad(!work.doc["all-bad"]);
    else if (pressed === "m") setMode(ranks ? "pairs" : "ranks");
    else if (event.key === "Escape") {
      $("choices").focus();
      return;
    } else return;
    event.preventDefault();
    if (document.activeElement && document.activeElement.closest(".pair"))
      $("choices").focus({ preventScroll: true });
    render();
    const card = document.querySelector(`[data-card="${at}"]`);
    if (at !== stay) card.scrollIntoView({ block: "nearest" });
  }

  function open(next) {
    work = next;
    at = 0;
    if (!work.state.order) {
      work.state.order = work.item.order || FG.draw(count);
      work.save();
    }
    FG.showTexts(schema, work.item.row, null);
    FG.showNotes({});
    deciding.open(work.item.row);
    showDifferences(null);
    render();
    const { seen } = work.state;
    if (!seen || FG.readingProblems(schema, { seen }).length)
      work.state.seen = outputs.map(() => ({ seconds: 0, share: 0 }));
    reading = new FG.Reading(work.state.seen, FG.now(), !document.hidden);
    look();
  }

  function help(table) {
    return [
      FG.el(
        "p",
        {},
        FG.own(schema.comparison),
        " ",
        t("Judge every pair; “equally good” is a choice too. The {noun}s are in a random order.", { noun }),
      ),
      FG.el("h3", {}, t("Keys")),
      table([
        ["↑ / ↓", t("move between pairs, or between {noun}s", { noun })],
        ["1 / 2 / 0", t("the first is better, the second is better, equally good; by rank: the rank")],
        ["D", t("mark the words that differ from those of one {noun}", { noun })],
        ["B", t("no {noun} is acceptable", { noun })],
        ["M", t("switch between pair by pair and by rank")],
        ...FG.decidingHelp(),
        ["Ctrl+Z / Ctrl+Shift+Z", t("undo, redo")],
        ["Ctrl+Enter", t("submit")],
        ["?", t("this help")],
      ]),
    ];
  }

  // What scrolls into view must not hide behind the choices.
  new ResizeObserver(([entry]) =>
    document.documentElement.style.setProperty("--foot", `${entry.target.offsetHeight}px`),
  ).observe($("choose"));
  for (const input of document.querySelectorAll("input[name=mode]"))
    input.addEventListener("change", () => setMode(input.value));
  for (const type of ["scroll", "keydown", "pointerdown", "pointermove", "visibilitychange"])
    document.addEventListener(type, look, { capture: true, passive: true });
  $("all-bad").addEventListener("change", ({ target }) => setAllBad(target.checked));
  $("submit").addEventListener("click", submit);
  FG.addNotes((change, key) => {
    work.commit(change(work.doc), key);
    FG.showStatus(work);
  });
  FG.start("comparison", {
    open,
    fresh,
    submit,
    key,
    fieldKey: (event) => event.key === "Escape" && $("choices").focus(),
    help,
    refresh: render,
    step: (back) => {
      if (work.step(back)) FG.say(back ? t("Undone.") : t("Redone."), "good");
      render();
    },
  });
})();
