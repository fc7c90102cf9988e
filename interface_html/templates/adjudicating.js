// Adjudication on the annotation page: the marks of all annotators as lines in one text, and their differences in words,
// each with the versions that annotators gave, as buttons that take them. A difference is undecided until a version of
// it is taken or its place is changed. Annotators are named A, B, ...: who they are must not count.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = FG.$,
    { t, tn } = FG;
  const LONGEST = 160; // code points of a quote in a version

  const short = (text) => {
    const points = FG.points(text);
    return points.length > LONGEST ? `${FG.cut(points, 0, LONGEST)}…` : text;
  };
  const HOW = {
    taken: t("decided: taken"),
    majority: t("decided: the majority"),
    own: t("decided: your own version"),
  };

  // Add the list of differences to the page.
  FG.addAdjudicating = function (page) {
    const { schema } = page;
    let docs = [],
      places = [],
      rows = [], // of the differences: {place, number, head, versions, majority, node, buttons, state}
      at = -1; // the difference that was visited last

    const text = () => page.row[FG.textKey(schema)];
    const decisions = () => page.doc.decisions || {};
    const isDecided = ({ place }) => Object.hasOwn(decisions(), place.name);
    const undecided = () => rows.filter((row) => !isDecided(row));

    // ---- words -----------------------------------------------------------------------------------------------
    function errorWords(error) {
      const kind = FG.kind(schema, error["error type"]),
        severity = FG.severities(schema).find(({ name }) => name === error.severity),
        isSource = FG.sideOf(error) === FG.SOURCE,
        quote = short(FG.quote(page.views[FG.sideOf(error)].points, error.start, error.end));
      const label = labelWords(kind, severity),
        words = markWords(error, label, quote, isSource),
        mark = withEvidence(words, kind, error);
      if (!error.reason) return mark;
      return t("{mark}, because: “{reason}”", { mark, reason: short(FG.strip(error.reason)) });
    }

    function markWords(error, kind, quote, isSource) {
      if (isSource) return t("{kind} in the source: “{quote}”", { kind, quote });
      if (!schema.mark_outputs) return t("{kind}: “{quote}”", { kind, quote });
      return t("{kind} in {text}: “{quote}”", { kind, quote, text: page.textName(FG.sideOf(error)) });
    }

    function labelWords(kind, severity) {
      if (kind.positive) return t("{kind} (liked)", { kind: kind.label });
      return severity ? t("{kind}, {severity}", { kind: kind.label, severity: severity.label }) : kind.label;
    }

    function withEvidence(mark, kind, error) {
      if (kind.needs === "nothing" || !error.explanation) return mark;
      const ids = kind.needs === "sentences" && FG.evidence(schema, error.explanation);
      if (ids) return t("{mark}, contradicts {evidence}", { mark, evidence: FG.notation(ids) });
      return t("{mark}, repeats “{quote}”", { mark, quote: short(FG.strip(error.explanation)) });
    }

    const infoWords = (info) =>
      t("{kind}, found in {evidence}", {
        kind: FG.kind(schema, info["error type"]).label,
        evidence: FG.notation(FG.missingIds(schema, info)),
      });

    // What an annotation says about a place: a list of texts or nodes.
    function content({ errors, info, of }, doc) {
      if (info) return [of(doc) === "true" ? infoWords(info) : t("not given")];
      if (!errors) {
        const correction = doc["corrected-prediction"];
        return [correction === text() ? t("unchanged") : FG.diffNodes(text(), correction)];
      }
      const marks = errors(doc);
      return marks.length ? marks.map(errorWords) : [t("no mark")];
    }

    const words = (place, doc) => (place.isCorrection ? t("the correction") : content(place, doc).join("; "));

    // The words that a place is about; "" if it is no place in a text.
    function quoteOf({ side, range }) {
      return range ? short(FG.quote(page.views[side].points, ...range)) : "";
    }

    // ---- deciding --------------------------------------------------------------------------------------------
    // Change the annotation and decide differences: {name: how}.
    function decide(parts, decided, said) {
      const next = { ...page.doc, ...parts, decisions: { ...decisions(), ...decided } },
        isMarked = FG.countErrors(schema, next) > 0;
      page.mode = page.active = null;
      page.view.collapse();
      page.commit({ ...next, "no-error": next["no-error"] && !isMarked });
      FG.say(said, "good");
    }

    // What was taken over from annotators, as a sentence, and how many differences are left.
    function taken(people, what, left) {
      const head = t("Taken from {name}: {what}.", { name: FG.listedPeople(people), what });
      return `${head} ${leftWords(left)}`;
    }

    function leftWords(left) {
      if (!left) return t("All differences are decided.");
      return tn("{n} difference is not decided.", "{n} differences are not decided.", { n: left });
    }

    const leftAfter = (names) => undecided().filter(({ place }) => !names.includes(place.name)).length;

    function take({ place }, { people, doc }) {
      const said = taken(people, words(place, doc), leftAfter([place.name]));
      decide(place.put(page.doc, doc), { [place.name]: "taken" }, said);
    }

    function takeAll(i) {
      const { errors, "missing-info": missing, "corrected-prediction": correction } = FG.clone(docs[i]);
      const isEmpty = !FG.countErrors(schema, docs[i]);
      decide(
        {
          errors: errors.map(FG.plainError),
          "missing-info": missing,
          "corrected-prediction": correction,
          "no-error": isEmpty,
        },
        Object.fromEntries(rows.map(({ place }) => [place.name, "taken"])),
        taken([i], t("the whole annotation"), 0),
      );
    }

    // Take the majority of every difference that is not decided and has one.
    page.takeMajority = function () {
      const leading = undecided().filter(({ majority }) => majority);
      if (!leading.length) {
        page.refuse(t("No version leads in what is not decided: decide it yourself."));
        return;
      }
      let next = page.doc;
      for (const { place, majority } of leading) next = { ...next, ...place.put(next, majority.doc) };
      const names = leading.map(({ place }) => place.name),
        head = tn("The majority decides {n} difference.", "The majority decides {n} differences.", { n: names.length });
      decide(next, Object.fromEntries(names.map((name) => [name, "majority"])), `${head} ${leftWords(leftAfter(names))}`);
    };

    // An annotation with the decisions that follow from a change of the adjudicator.
    page.withOwnDecisions = (after) => FG.withOwnDecisions(places, page.doc, after);

    // The problem that differences are not decided, in a list; [] if all are.
    page.differenceProblems = function () {
      const left = undecided();
      if (!left.length) return [];
      const counts = { n: left.length, total: rows.length };
      return [
        {
          text: tn(
            "{n} of {total} differences is not decided.",
            "{n} of {total} differences are not decided.",
            counts,
          ),
          go: () => goTo(rows.indexOf(left[0])),
          ...(left.some(({ majority }) => majority)
            ? { remedy: [t("Take the majority for the rest"), page.takeMajority] }
            : {}),
        },
      ];
    };

    // ---- the list --------------------------------------------------------------------------------------------
    const person = (i) => FG.el("span", { class: "badge person", color: FG.personColour(i) }, FG.personName(i));

    // A version in lines. Words of the page have its direction, a correction has its own.
    const versionLines = (place, doc) =>
      content(place, doc).map((part) => FG.el("span", { class: "version", ...(place.isCorrection ? { dir: "auto" } : {}) }, part));

    function versionButton(row, version, k) {
      const { place, majority, number } = row,
        isLeading = majority === version,
        lines = versionLines(place, version.doc);
      return FG.el(
        "button",
        { type: "button", "data-key": `difference-${number}-${k}`, onclick: () => take(row, version) },
        FG.el("span", { class: "hidden" }, `${t("Take")} `),
        version.people.map((i) => [person(i), " "]),
        lines,
        isLeading ? [" ", FG.el("span", { class: "leads" }, t("majority"))] : null,
      );
    }

    function rowNode(row) {
      const { place, number, head } = row,
        quote = quoteOf(place);
      row.state = FG.el("span", { class: "state" });
      row.buttons = row.versions.map((version, k) => versionButton(row, version, k));
      const link = (isOn) => linkPlace(place, isOn);
      row.node = FG.el(
        "li",
        {
          class: "difference",
          onfocusin: () => link(true),
          onfocusout: () => link(false),
          onpointerenter: () => link(true),
          onpointerleave: () => link(false),
        },
        FG.el(
          "p",
          { class: "difference-head" },
          FG.el("span", { class: "number" }, String(number)),
          " ",
          quote ? [FG.el("q", { dir: "auto" }, quote), " "] : null,
          FG.el("span", { class: "hint" }, row.majority ? place.difference : t("{difference}; no majority", place)),
          " ",
          row.state,
        ),
        FG.el("div", { class: "versions", role: "group", "aria-label": head }, row.buttons),
      );
      return row.node;
    }

    function linkPlace({ side, range }, isOn) {
      for (const [other, view] of Object.entries(page.views)) view.link(isOn && range && other === side ? range : null);
    }

    // What is the same in all annotations, and comments: folded, because there is nothing to decide.
    function sameNode() {
      const same = places.filter(({ difference }) => !difference);
      if (!same.length) return null;
      const entries = same.map((place) =>
        FG.el("li", {}, `${place.same}: `, versionLines(place, docs[0])),
      );
      const count = tn("{n} entry is the same in all annotations", "{n} entries are the same in all annotations", {
        n: same.length,
      });
      return FG.el("details", { class: "same" }, FG.el("summary", {}, count), FG.el("ul", {}, entries));
    }

    function commentsNode() {
      if (!docs.some(({ comment }) => comment)) return null;
      const entries = docs.map(({ comment }, i) =>
        FG.el("li", {}, person(i), " ", FG.el("span", { dir: "auto" }, comment ? FG.visible(comment) : t("no comment"))),
      );
      return [FG.el("h4", {}, t("Comments")), FG.el("ul", { class: "comments" }, entries)];
    }

    function headNodes() {
      const all = docs.map((_, i) =>
        FG.el(
          "button",
          { type: "button", "data-key": `all-${i}`, onclick: () => takeAll(i) },
          t("Take all of {name}", { name: FG.personName(i) }),
          " ",
          FG.el("span", { class: "badge person", color: FG.personColour(i), "aria-hidden": "true" }, FG.personName(i)),
        ),
      );
      const majority = rows.some((row) => row.majority)
        ? FG.el(
            "button",
            { type: "button", id: "take-majority", "data-key": "majority", onclick: page.takeMajority },
            t("Take the majority for the rest"),
          )
        : null;
      return [
        FG.el("h3", { id: "annotations-title" }, t("Annotations to decide between")),
        FG.el("p", { class: "hint", id: "differences-left" }),
        FG.el("p", { class: "hint" }, t("Below the words, each person has a line: {people}.", { people: FG.listedPeople([...docs.keys()]) })),
        FG.el("div", { class: "row take-all" }, all, majority),
      ];
    }

    function newRow(place, i) {
      const head = t("Difference {n}: {difference}", { n: i + 1, difference: place.difference }),
        versions = FG.versionsOf(place, docs),
        lead = FG.majorityOf(place, docs);
      const majority = lead && versions.find(({ doc }) => doc === lead.doc);
      return { place, number: i + 1, head, versions, majority };
    }

    // The marks of all people, in the texts.
    function paintLanes() {
      for (const [side, view] of Object.entries(page.views)) {
        const here = places
          .filter((place) => place.range && place.side === side)
          .map((place) => ({
            start: place.range[0],
            end: place.range[1],
            number: rows.find((row) => row.place === place)?.number,
            marks: docs.map((doc) =>
              place.errors(doc).map(({ start, end, ...error }) => ({ start, end, liked: FG.isLiked(schema, error) })),
            ),
          }));
        FG.paintLanes(view, here);
      }
    }

    // Show the annotations of a new item.
    page.openAnnotations = function () {
      docs = FG.annotationsOf(schema, page.row);
      at = -1;
      places = FG.placesOf(schema, docs);
      rows = places.filter(({ difference }) => difference).map(newRow);
      const isOn = docs.length > 0;
      $("annotations").hidden = !isOn;
      $("work").classList.toggle("adjudicating", isOn);
      if (isOn) paintLanes();
      if (!isOn) {
        $("annotations").replaceChildren();
        return;
      }
      const list = FG.el("ol", { id: "difference-list" }, rows.map(rowNode));
      $("annotations").replaceChildren(...[...headNodes(), list, sameNode(), commentsNode()].flat().filter(Boolean));
    };

    // Show what is decided, and which versions the annotation has.
    page.showTaken = function () {
      if (!docs.length) return;
      for (const row of rows) {
        const how = decisions()[row.place.name],
          own = row.place.of(page.doc);
        row.node.classList.toggle("undecided", !how);
        row.state.textContent = how ? HOW[how] || how : t("not decided");
        row.versions.forEach(({ doc }, k) => {
          const isIn = row.place.of(doc) === own;
          row.buttons[k].setAttribute("aria-pressed", String(Boolean(how) && isIn));
          row.buttons[k].classList.toggle("start", !how && isIn);
        });
      }
      const left = undecided().length,
        keys = FG.isTouch ? "" : ` ${t("“.” goes to the next one, “,” to the previous one, Enter takes.")}`,
        count = tn("{n} difference.", "{n} differences.", { n: rows.length });
      $("differences-left").textContent = `${count} ${rows.length ? leftWords(left) : ""}${rows.length ? keys : ""}`;
      if ($("take-majority")) $("take-majority").disabled = !undecided().some(({ majority }) => majority);
    };

    // ---- keys ------------------------------------------------------------------------------------------------
    function goTo(i) {
      const { buttons, place, head } = rows[i];
      at = i;
      const chosen = buttons.find((button) => button.getAttribute("aria-pressed") === "true") || buttons[0];
      if (place.range) showPlace(place);
      chosen.focus();
      FG.say(t("{row} ({n} of {total}).", { row: head, n: i + 1, total: rows.length }));
    }

    // Scroll a place of a text into view.
    function showPlace({ side, range }) {
      const view = page.views[side],
        unit = view.units.findIndex(([, end]) => end > range[0]);
      if (unit >= 0) view.spans[unit].scrollIntoView({ block: "nearest" });
    }

    // Go to the next difference, or with `by` -1 to the previous one.
    page.goDifference = function (by) {
      const focused = rows.findIndex(({ node }) => node.contains(document.activeElement));
      if (!docs.length) return page.refuse(t("This item has no annotations to decide between."));
      if (!rows.length) return page.refuse(t("The annotations do not differ."));
      if (focused >= 0) at = focused;
      else if (at < 0 && by < 0) at = 0;
      goTo((at + by + rows.length) % rows.length);
      return true;
    };
  };
})(window.FG);
