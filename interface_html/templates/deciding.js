// Adjudication on the comparison and the rating page. Each card has the values of all people who judged the item, as
// buttons that take them; a table above has what belongs to no card. People are named X, Y, ...: the outputs are A, B,
// ..., and who the people are must not count.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = FG.$,
    { t, tn } = FG;
  const PEOPLE = "XYZWVUTRQ"; // their keys: letters that are no other keys of these pages
  const nameOf = (i) => PEOPLE[i % PEOPLE.length] + (i < PEOPLE.length ? "" : Math.floor(i / PEOPLE.length));

  // What a page shows of several submissions. `page`:
  //   name           of the page
  //   cards()        how many cards there are
  //   at()           the card with the cursor
  //   values(i)      the value of each person on a card; null: it cannot be taken
  //   words(i, v)    a value of a card in words
  //   what(i, v)     a value and its card in words
  //   own(i)         the value that the work has on a card
  //   take(i, v)     makes a value that of the work
  //   takeAll(entry) makes a whole submission the work
  //   show(i)        moves the cursor to a card
  //   rows()         more rows of the table: {head, cells: [[text or node]]}, with `own`, `values` and `take` if a value
  //                  of the row can be taken
  FG.Deciding = class {
    constructor(page) {
      this.page = page;
      this.entries = [];
      this.rows = [];
      this.isVisited = false; // whether a difference of the item was gone to
    }

    get isOn() {
      return this.entries.length > 0;
    }

    // Show the submissions of a new item.
    open(row) {
      this.entries = FG.submittedOn(row, this.page.name);
      this.isVisited = false;
      $("deciding").hidden = !this.isOn;
      $("deciding").replaceChildren();
      if (this.isOn) this.build();
    }

    differs(i) {
      return this.isOn && !FG.allSame(this.page.values(i));
    }

    // ---- the buttons of a card -------------------------------------------------------------------------------
    // The values of all people on a card; [] without submissions.
    buttons(i) {
      if (!this.isOn) return [];
      const { page } = this,
        own = page.own(i);
      return page.values(i).map((value, k) => {
        const name = nameOf(k),
          content = [FG.el("span", { class: "badge" }, name), " ", page.words(i, value)];
        if (value === null) return FG.el("span", { class: "taken-not" }, content);
        return FG.el(
          "button",
          {
            type: "button",
            "data-key": `take-${i}-${k}`,
            "aria-pressed": String(FG.same(own, value)),
            "aria-label": t("Take {name}: {content}", { name, content: page.words(i, value) }),
            onclick: () => this.take(i, k),
            onfocus: () => i === page.at() || page.show(i),
          },
          content,
        );
      });
    }

    // The sign on a card that the people differ there; hidden if they do not.
    sign(i) {
      return FG.el("span", { class: "differ-sign", hidden: !this.differs(i) }, t("They differ"));
    }

    take(i, k) {
      const { page } = this,
        value = page.values(i)[k];
      if (value === null) return false;
      page.take(i, FG.clone(value));
      FG.say(t("Taken from {name}: {what}.", { name: nameOf(k), what: page.what(i, value) }), "good");
      return true;
    }

    takeAll(k) {
      this.page.takeAll(FG.clone(this.entries[k]));
      FG.say(t("Taken from {name}: {what}.", { name: nameOf(k), what: t("the whole submission") }), "good");
    }

    // ---- the table -------------------------------------------------------------------------------------------
    cell(row, k) {
      const content = row.cells[k].map((part) => FG.el("p", { dir: "auto" }, part));
      if (!row.take) return FG.el("td", {}, content);
      const name = nameOf(k);
      const button = FG.el(
        "button",
        { type: "button", "aria-label": t("Take {name} ({row})", { name, row: row.head }), onclick: () => this.takeRow(row, k) },
        t("Take {name}", { name }),
      );
      row.buttons.push(button);
      return FG.el("td", {}, content, button);
    }

    takeRow(row, k) {
      row.take(row.values[k]);
      const what = t("{title}: {value}", { title: row.head, value: row.cells[k][0] });
      FG.say(t("Taken from {name}: {what}.", { name: nameOf(k), what }), "good");
    }

    build() {
      this.rows = this.page.rows().map((row) => ({ ...row, buttons: [], differs: Boolean(row.take) && !FG.allSame(row.values) }));
      const heads = this.entries.map((_, k) => {
        const name = nameOf(k);
        return FG.el(
          "th",
          { scope: "col" },
          FG.el("span", { class: "badge" }, name),
          " ",
          FG.el(
            "button",
            { type: "button", "aria-keyshortcuts": `Shift+${name}`, onclick: () => this.takeAll(k) },
            t("Take all of {name}", { name }),
          ),
        );
      });
      const body = this.rows.map((row) =>
        FG.el(
          "tr",
          { class: row.differs ? "differs" : null },
          FG.el("th", { scope: "row" }, row.head, row.differs ? FG.el("p", { class: "differ-sign" }, t("They differ")) : null),
          this.entries.map((_, k) => this.cell(row, k)),
        ),
      );
      $("deciding").replaceChildren(
        FG.el("h3", {}, t("Submissions to decide between")),
        FG.el("p", { class: "hint" }),
        FG.el(
          "div",
          { class: "columns", role: "region", "aria-label": t("Submissions"), tabindex: "0" },
          FG.el("table", {}, FG.el("thead", {}, FG.el("tr", {}, FG.el("td", {}), heads)), FG.el("tbody", {}, body)),
        ),
      );
    }

    // Show how many differences there are, and which values the work has.
    update() {
      if (!this.isOn) return;
      const keys = FG.isTouch
        ? ""
        : ` ${t("“.” goes to the next one, “,” to the previous one. {first} to {last} take a value, with Shift all values.", {
            first: nameOf(0),
            last: nameOf(Math.min(this.entries.length, PEOPLE.length) - 1),
          })}`;
      const hint = $("deciding").querySelector(".hint");
      hint.textContent = tn("{n} difference.", "{n} differences.", { n: this.stops().length }) + keys;
      for (const { buttons, values, own } of this.rows)
        buttons.forEach((button, k) => button.setAttribute("aria-pressed", String(FG.same(own(), values[k]))));
    }

    // ---- keys ------------------------------------------------------------------------------------------------
    // The differences, in the order of the page: {isHere, go, name}.
    stops() {
      const { page } = this;
      const rows = this.rows.filter(({ differs }) => differs).map((row) => ({
        isHere: () => row.buttons.includes(document.activeElement),
        go: () => row.buttons[0].focus(),
        name: row.head,
      }));
      const cards = [...Array(page.cards()).keys()].filter((i) => this.differs(i)).map((i) => ({
        card: i,
        isHere: () => page.at() === i && !this.rowHere(),
        go: () => this.focusCard(i),
        name: page.title(i),
      }));
      return [...rows, ...cards];
    }

    // The row of the table that has focus.
    rowHere() {
      return this.rows.find(({ buttons }) => buttons.includes(document.activeElement));
    }

    focusCard(i) {
      this.page.show(i);
      const button = document.querySelector(`[data-key^="take-${i}-"]`);
      button.focus({ preventScroll: true });
      button.closest(".pair").scrollIntoView({ block: "nearest" });
    }

    // Go to the next difference, or with `by` -1 to the previous one.
    goDifference(by) {
      if (!this.isOn) return FG.say(t("This item has no submissions to decide between."), "bad");
      const { page } = this,
        stops = this.stops(),
        total = stops.length;
      if (!total) return FG.say(t("The submissions do not differ."));
      const here = stops.findIndex(({ isHere }) => isHere()),
        isFocused = here >= 0 && (this.rowHere() || document.activeElement.closest(".pair"));
      let at;
      if (isFocused) at = (here + by + total) % total;
      else if (!this.isVisited && page.at() === 0) at = by > 0 ? 0 : total - 1;
      else if (here >= 0) at = here; // the cursor is there, but nothing has focus
      else at = this.nearest(stops, by);
      this.isVisited = true;
      stops[at].go();
      FG.say(t("{row} ({n} of {total}).", { row: stops[at].name, n: at + 1, total }));
    }

    // The first difference after the cursor, or with `by` -1 the last one before it.
    nearest(stops, by) {
      const cursor = this.page.at();
      if (by > 0) {
        const next = stops.findIndex(({ card }) => card > cursor);
        return next < 0 ? 0 : next;
      }
      const before = stops.filter(({ card }) => card === undefined || card < cursor).length;
      return (before - 1 + stops.length) % stops.length;
    }

    // Whether a key was one of adjudication.
    key(event) {
      const pressed = FG.keyOf(event);
      if (pressed === "." || pressed === ",") {
        this.goDifference(pressed === "." ? 1 : -1);
        return true;
      }
      const k = PEOPLE.indexOf(pressed.toUpperCase());
      if (pressed.length !== 1 || k < 0 || k >= this.entries.length) return false;
      if (event.shiftKey) {
        this.takeAll(k);
        return true;
      }
      const row = this.rowHere();
      if (row) {
        this.takeRow(row, k);
        return true;
      }
      const at = this.page.at();
      if (!this.take(at, k)) return true;
      const next = this.stops().find(({ card }) => card > at);
      if (next) next.go();
      return true;
    }
  };

  // The row of the table with the comments, if there are any.
  FG.commentRows = (entries) =>
    entries.some(({ comment }) => comment)
      ? [{ head: t("Comments"), cells: entries.map(({ comment }) => [comment ? FG.visible(comment) : t("no comment")]) }]
      : [];

  // What the help says about adjudication: rows of its table.
  FG.decidingHelp = () => [
    ["X / Y / …", t("where submissions are decided between: take the value of X, of Y, …; with Shift all their values")],
    [". / ,", t("the next and the previous difference of the submissions")],
  ];
})(window.FG);
