// The comparison page: the answers in an order drawn for this item, six pairs or a ranking, mapped back to the row.
"use strict";
(function () {
  const FG = window.FG,
    $ = FG.$,
    schema = window.FG_SCHEMA;
  const pairs = FG.pairs(schema),
    count = schema.fields.answers.length;
  let work = null,
    at = 0; // the card with the cursor
  const names = "ABCDEFGHI";
  const order = () => work.state.order; // order()[k]: the answer shown as letter k
  const letter = (answer) => names[order().indexOf(answer)];

  // A random order, without bias.
  function draw(n) {
    const made = Array.from({ length: n }, (_, i) => i),
      random = new Uint32Array(1);
    for (let i = n - 1; i > 0; i--) {
      const limit = 4294967296 - (4294967296 % (i + 1));
      do {
        crypto.getRandomValues(random);
      } while (random[0] >= limit);
      const j = random[0] % (i + 1);
      [made[i], made[j]] = [made[j], made[i]];
    }
    return made;
  }

  function fresh(item) {
    const said = item.row.preference;
    return {
      preference: said ? FG.clone(said) : pairs.map(() => null),
      ranks: Array(count).fill(null),
      mode: "pairs",
    };
  }

  function change(parts) {
    work.commit({ ...work.doc, ...parts });
    render();
  }

  // The pairs as they are shown: [left, right, k, turned], k the place in the row's six values.
  function shown() {
    const made = [];
    for (let i = 0; i < count; i++)
      for (let j = i + 1; j < count; j++) {
        const [a, b] = [order()[i], order()[j]],
          turned = a > b;
        made.push({
          left: a,
          right: b,
          k: pairs.findIndex((p) => p[0] === Math.min(a, b) && p[1] === Math.max(a, b)),
          turned,
        });
      }
    return made;
  }

  const turn = (value, turned) => (turned && value ? 3 - value : value); // 1 and 2 change places, 0 and null stay

  function choosePair(i, value) {
    const pair = shown()[i],
      preference = [...work.doc.preference];
    preference[pair.k] = turn(value, pair.turned);
    change({ preference, ranks: Array(count).fill(null) });
  }

  function chooseRank(answer, rank) {
    const ranks = [...work.doc.ranks];
    ranks[answer] = rank;
    change({ ranks, preference: FG.fromRanks(pairs, ranks) });
  }

  // Changing the way keeps what was said, where it is a ranking.
  function setMode(mode) {
    if (mode === work.doc.mode) return;
    const { preference } = work.doc;
    let ranks = work.doc.ranks;
    if (mode === "ranks" && ranks.includes(null) && !preference.includes(null)) {
      if (FG.brokenTriple(count, pairs, preference)) {
        FG.say(
          "Your pairs are those of no ranking, so ranks cannot take them over. Change the pairs first, or use Undo after choosing ranks.",
          "bad",
        );
        render();
        return;
      }
      const better = (a) =>
        pairs.filter(([i, j], k) => (i === a && preference[k] === 2) || (j === a && preference[k] === 1))
          .length;
      ranks = ranks.map((_, a) => better(a) + 1);
    } else if (mode === "ranks" && ranks.includes(null) && preference.some((value) => value !== null)) {
      FG.say("Ranks start empty: the pairs chosen so far are kept until you choose a rank.");
    }
    at = 0;
    change({ mode, ranks });
  }

  function radio(group, label, checked, onchange) {
    const input = FG.el("input", { type: "radio", name: group, "data-key": `${group}-${label}`, onchange });
    input.checked = checked;
    return FG.el("label", { class: "choice" }, input, FG.el("span", {}, label));
  }

  function cards() {
    if (work.doc.mode === "ranks") {
      return order().map((answer, i) =>
        FG.el(
          "fieldset",
          { class: i === at ? "pair active" : "pair", "data-card": i },
          FG.el("legend", {}, `Rank of answer ${names[i]}`),
          FG.el(
            "div",
            { class: "choices" },
            Array.from({ length: count }, (_, r) =>
              radio(`rank-${i}`, String(r + 1), work.doc.ranks[answer] === r + 1, () => {
                at = i;
                chooseRank(answer, r + 1);
              }),
            ),
          ),
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
        { class: i === at ? "pair active" : "pair", "data-card": i },
        FG.el("legend", {}, `${letter(pair.left)} or ${letter(pair.right)}?`),
        FG.el(
          "div",
          { class: "choices" },
          radio(`pair-${i}`, `${letter(pair.left)} better`, value === 1, set(1)),
          radio(`pair-${i}`, "Equal", value === 0, set(0)),
          radio(`pair-${i}`, `${letter(pair.right)} better`, value === 2, set(2)),
        ),
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
      `${a} is at least as good as ${b}, and ${b} as ${c}, yet ${c} is better than ${a}. Is that meant?`,
    ];
  }

  function render() {
    const { mode } = work.doc;
    for (const input of document.querySelectorAll("input[name=mode]")) input.checked = input.value === mode;
    FG.refill($("choices"), cards());
    $("choose-hint").textContent =
      mode === "pairs"
        ? "Up and down move between pairs; 1 the first is better, 2 the second, 0 equally good."
        : `Up and down move between answers; 1 to ${count} give the rank, 1 is best. Equal ranks are ties.`;
    $("warnings").replaceChildren(...warnings().map((warning) => FG.el("li", {}, warning)));
    FG.showStatus(work);
  }

  function problems() {
    const { preference, ranks, mode } = work.doc,
      found = [];
    const go = (i) => () => {
      at = i;
      render();
      const first = document.querySelector(`[data-card="${i}"] input`);
      first.focus();
    };
    if (mode === "ranks")
      order().forEach((answer, i) => {
        if (ranks[answer] === null) found.push({ text: `Answer ${names[i]} has no rank.`, go: go(i) });
      });
    if (found.length) return found;
    shown().forEach((pair, i) => {
      if (preference[pair.k] === null)
        found.push({ text: `${letter(pair.left)} or ${letter(pair.right)} is not decided.`, go: go(i) });
    });
    const cycle = found.length ? null : FG.findCycle(count, pairs, preference);
    if (cycle) {
      const chain = [...cycle, cycle[0]].map(letter).join(" > ");
      const i = shown().findIndex((pair) => cycle.includes(pair.left) && cycle.includes(pair.right));
      found.push({ text: `The choices go in a circle: ${chain}. Change one of them.`, go: go(i) });
    }
    return found;
  }

  async function submit() {
    const wrong = problems();
    FG.showProblems(wrong);
    if (wrong.length) {
      FG.say(`Not submitted: ${wrong[0].text}`, "bad");
      wrong[0].go();
      return;
    }
    const kept = await work.submit();
    FG.showStatus(work);
    if (kept) FG.afterSubmit();
  }

  function key(event) {
    const ranks = work.doc.mode === "ranks",
      last = (ranks ? count : pairs.length) - 1,
      digit = /^[0-9]$/.test(event.key) ? Number(event.key) : -1;
    const stay = at;
    if (event.key === "ArrowDown") at = Math.min(at + 1, last);
    else if (event.key === "ArrowUp") at = Math.max(at - 1, 0);
    else if (!ranks && digit >= 0 && digit <= 2) {
      choosePair(at, digit);
      at = Math.min(at + 1, last);
    } else if (ranks && digit >= 1 && digit <= count) {
      chooseRank(order()[at], digit);
      at = Math.min(at + 1, last);
    } else if (event.key.toLowerCase() === "m") setMode(ranks ? "pairs" : "ranks");
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
      work.state.order = work.item.order || draw(count);
      work.save();
    }
    FG.showSources(schema, work.item.row, null);
    $("answers").replaceChildren(
      ...order().map((answer, i) =>
        FG.el(
          "article",
          { class: "candidate" },
          FG.el("h3", {}, FG.el("span", { class: "badge" }, names[i]), ` Answer ${names[i]}`),
          FG.el("p", { dir: "auto", class: "answer" }, work.item.row[schema.fields.answers[answer]]),
        ),
      ),
    );
    render();
  }

  function help(table) {
    return [
      FG.el(
        "p",
        {},
        "Which answer would help the person who asked more? Judge every pair; equally good is an answer too. The answers stand in a random order.",
      ),
      FG.el("h3", {}, "Keys"),
      table([
        ["↑ / ↓", "move between pairs, or answers"],
        ["1 / 2 / 0", "the first is better, the second, equally good; by rank: the rank"],
        ["M", "pair by pair, or by rank"],
        ["Ctrl+Z / Ctrl+Shift+Z", "undo, redo"],
        ["Ctrl+Enter", "submit"],
        ["?", "this help"],
      ]),
    ];
  }

  for (const input of document.querySelectorAll("input[name=mode]"))
    input.addEventListener("change", () => setMode(input.value));
  $("submit").addEventListener("click", submit);
  FG.start("comparison", {
    open,
    fresh,
    submit,
    key,
    help,
    step: (back) => {
      if (work.step(back)) FG.say(back ? "Undone." : "Redone.", "good");
      render();
    },
  });
})();
