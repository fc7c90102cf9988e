// Adjudication on the annotation page: the annotators' annotations of an item beside each other, their differences in
// words, and buttons that take a mark, or all marks, over. Annotators are named A, B, ...: who they are must not count.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = FG.$,
    { t, tn } = FG;
  const LONGEST = 160; // code points of a quote in a cell

  const short = (text) => {
    const points = FG.points(text);
    return points.length > LONGEST ? `${FG.cut(points, 0, LONGEST)}…` : text;
  };
  const nameOf = (i) => String.fromCharCode(65 + (i % 26)) + (i < 26 ? "" : Math.floor(i / 26));
  const allSame = (values) => values.every((value) => FG.same(value, values[0]));

  // ---- what differs (pure) -----------------------------------------------------------------------------------
  // The annotations to decide between; [] if the item has none, or one that cannot be shown.
  FG.annotationsOf = function (schema, row) {
    const { annotations, shared } = row;
    if (!Array.isArray(annotations) || !FG.isAnnotation(schema, shared)) return [];
    const lengthOf = (side) => FG.points(row[FG.sideKey(schema, side)] || "").length,
      isWrong = (error) => !(error.start >= 0 && error.start < error.end && error.end <= lengthOf(FG.sideOf(error)));
    const canBeShown = (doc) => FG.isAnnotation(schema, doc) && !doc.errors.some(isWrong);
    return annotations.every(canBeShown) ? annotations : [];
  };

  // An error without what belongs to its annotator's submission only.
  const plain = ({ quote, origin, ...error }) => error;
  const spanOf = ({ start, end }) => [start, end];
  const PARTS = [
    [t("different kinds"), (error) => error["error type"]],
    [t("different spans"), spanOf],
    [t("different evidence"), (error) => error.explanation],
    [t("different severities"), (error) => error.severity || ""],
    [t("different reasons"), (error) => error.reason || ""],
  ];
  const contentOf = (errors) =>
    errors
      .map((error) => PARTS.map(([, part]) => part(error)))
      .sort((a, b) => a[1][0] - b[1][0] || a[1][1] - b[1][1] || (a[0] < b[0] ? -1 : 1));

  // The marks of all annotations in groups: [{side, start, end, cells}], those of the response first. Marks of one
  // group overlap, directly or through others, and `cells` has the errors of each annotation.
  FG.markGroups = function (docs) {
    const groups = [],
      marks = docs.flatMap((doc, i) => doc.errors.map((error) => ({ error: plain(error), i })));
    const sideRank = (side) => (side === FG.SOURCE ? Infinity : FG.outputNumber(side)),
      order = ({ error, i }) => [sideRank(FG.sideOf(error)), error.start, error.end, i];
    marks.sort((a, b) => {
      const first = order(a),
        second = order(b),
        place = first.findIndex((value, k) => value !== second[k]);
      return place < 0 ? 0 : first[place] - second[place];
    });
    for (const { error, i } of marks) {
      const side = FG.sideOf(error);
      let group = groups.at(-1);
      if (!group || group.side !== side || group.end <= error.start) {
        group = { side, start: error.start, end: error.end, cells: docs.map(() => []) };
        groups.push(group);
      }
      group.end = Math.max(group.end, error.end);
      group.cells[i].push(error);
    }
    return groups;
  };

  // "A", "A and B", "A, B and C"
  function listed(names) {
    const last = names.at(-1);
    if (names.length < 2) return names.join("");
    return t("{first} and {last}", { first: names.slice(0, -1).join(", "), last });
  }

  const byWhom = (has) => listed(has.flatMap((isOne, i) => (isOne ? [nameOf(i)] : [])));

  // How the annotations of a group differ, in words; "" if they do not.
  FG.markDifference = function (cells) {
    const contents = cells.map(contentOf);
    if (allSame(contents)) return "";
    const has = cells.map((errors) => errors.length > 0),
      given = contents.filter((content) => content.length);
    const reasons = has.every(Boolean) ? [] : [t("marked by {names} only", { names: byWhom(has) })];
    PARTS.forEach(([name], part) => {
      const values = given.map((content) => JSON.stringify(content.map((error) => error[part])));
      if (!allSame(values)) reasons.push(name);
    });
    return reasons.join(", ");
  };

  const infoKey = (schema, info) => {
    const { source, sentences } = FG.missingIds(schema, info);
    return JSON.stringify([info["error type"], source, [...sentences].sort((a, b) => a - b)]);
  };

  // The missing information of all annotations, each once: [{info, has}], where `has` tells which annotations have it.
  FG.missingGroups = function (schema, docs) {
    const groups = new Map();
    docs.forEach((doc, i) => {
      for (const info of doc["missing-info"]) {
        const key = infoKey(schema, info);
        if (!groups.has(key)) groups.set(key, { info, has: docs.map(() => false) });
        groups.get(key).has[i] = true;
      }
    });
    return [...groups.values()];
  };

  // ---- the page ----------------------------------------------------------------------------------------------
  // Add the table of annotations to the page.
  FG.addAdjudicating = function (page) {
    const { schema } = page;
    let docs = [],
      views = [], // [side, view] of the texts in the table
      rows = [], // {difference, same, range, cells: [{content, take, isTaken, button}]}
      at = -1; // the difference that was visited last

    const text = () => page.row[FG.textKey(schema)];
    const differences = () => rows.filter(({ difference }) => difference);

    // ---- words -----------------------------------------------------------------------------------------------
    function errorWords(error) {
      const kind = FG.kind(schema, error["error type"]),
        severity = (schema.severities || []).find(({ name }) => name === error.severity),
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

    // What was taken over from an annotation, as a sentence.
    const taken = (i, what) => t("Taken from {name}: {what}.", { name: nameOf(i), what });

    // ---- taking over -----------------------------------------------------------------------------------------
    function change(parts, said) {
      const next = { ...page.doc, ...parts },
        isMarked = FG.countErrors(schema, next) > 0;
      page.mode = page.active = null;
      page.view.collapse();
      page.change({ ...parts, "no-error": next["no-error"] && !isMarked });
      FG.say(said, "good");
    }

    function takeAll(i) {
      const { errors, "missing-info": missing, "corrected-prediction": correction } = FG.clone(docs[i]);
      const isEmpty = !FG.countErrors(schema, docs[i]);
      change(
        {
          errors: errors.map(plain),
          "missing-info": missing,
          "corrected-prediction": correction,
          "no-error": isEmpty,
        },
        taken(i, t("the whole annotation")),
      );
    }

    function markRow({ side, start, end, cells }) {
      const isHere = (error) => FG.sideOf(error) === side && error.start < end && start < error.end,
        own = () => page.doc.errors.filter(isHere);
      return {
        difference: FG.markDifference(cells),
        same: t("The same mark"),
        side,
        range: side === FG.SOURCE ? null : [start, end],
        cells: cells.map((errors, i) => ({
          content: errors.length ? errors.map(errorWords) : [t("no mark")],
          isTaken: () => FG.same(contentOf(own()), contentOf(errors)),
          take: () => {
            const others = page.doc.errors.filter((error) => !isHere(error)),
              what = errors.length ? errors.map(errorWords).join("; ") : t("no mark");
            change({ errors: [...others, ...FG.clone(errors)] }, taken(i, what));
          },
        })),
      };
    }

    function missingRow({ info, has }) {
      const key = infoKey(schema, info),
        others = () => page.doc["missing-info"].filter((other) => infoKey(schema, other) !== key),
        isGiven = () => others().length < page.doc["missing-info"].length;
      return {
        difference: has.every(Boolean)
          ? ""
          : t("missing information, given by {names} only", { names: byWhom(has) }),
        same: t("The same missing information"),
        range: null,
        cells: has.map((isOne, i) => ({
          content: [isOne ? infoWords(info) : t("not given")],
          isTaken: () => isGiven() === isOne,
          take: () => {
            const missing = isOne ? [...others(), FG.clone(info)] : others(),
              what = isOne ? infoWords(info) : t("this information is not missing");
            change({ "missing-info": missing }, taken(i, what));
          },
        })),
      };
    }

    function correctionRow() {
      const corrections = docs.map((doc) => doc["corrected-prediction"]);
      return {
        difference: allSame(corrections) ? "" : t("different corrections"),
        same: t("The same correction"),
        range: null,
        cells: corrections.map((correction, i) => ({
          content: [correction === text() ? t("unchanged") : FG.diffNodes(text(), correction)],
          isTaken: () => page.doc["corrected-prediction"] === correction,
          take: () => change({ "corrected-prediction": correction }, taken(i, t("the correction"))),
        })),
      };
    }

    function commentRow() {
      const content = (doc) => [doc.comment ? FG.visible(doc.comment) : t("no comment")];
      return { same: t("Comments"), range: null, cells: docs.map((doc) => ({ content: content(doc) })) };
    }

    // ---- the table -------------------------------------------------------------------------------------------
    function textCell(doc) {
      const nodes = FG.outputSides(schema).map((side) => textNode(doc, side));
      return FG.el("td", {}, nodes);
    }

    // The text of a side with the marks of an annotation.
    function textNode(doc, side) {
      const node = FG.el("div", { class: "output", dir: "auto" }),
        column = new FG.TextView(node, null);
      column.show(schema, page.row[FG.sideKey(schema, side)]);
      const marks = doc.errors.map((error, i) => {
        const kind = FG.kind(schema, error["error type"]);
        return { ...error, kind, badge: FG.badgeText(kind, i) + FG.severityLetter(schema, error) };
      });
      column.paint(
        marks.filter((mark) => FG.sideOf(mark) === side),
        null,
      );
      views.push([side, column]);
      return schema.mark_outputs ? [FG.el("p", { class: "hint" }, FG.capital(page.textName(side))), node] : node;
    }

    function cellNode(cell, i, head) {
      const content = cell.content.map((part) => FG.el("p", { dir: "auto" }, part));
      if (!cell.take) return FG.el("td", {}, content);
      const parts = { name: nameOf(i), row: head, content: cell.content.join("; ") },
        isText = typeof cell.content[0] === "string";
      cell.button = FG.el(
        "button",
        { type: "button", "aria-label": isText ? t("Take {name} ({row}): {content}", parts) : t("Take {name} ({row})", parts), onclick: cell.take },
        t("Take {name}", parts),
      );
      return FG.el("td", {}, content, cell.button);
    }

    function rowNode(row, number) {
      const { difference } = row,
        head = difference ? t("Difference {n}: {difference}", { n: number, difference }) : row.same;
      const link = (isOn) =>
        [...Object.entries(page.views), ...views].forEach(([side, one]) =>
          one.link(isOn && side === row.side ? row.range : null),
        );
      row.node = FG.el(
        "tr",
        { onfocusin: () => link(true), onfocusout: () => link(false) },
        FG.el("th", { scope: "row" }, head),
        row.cells.map((cell, i) => cellNode(cell, i, head)),
      );
      row.head = head;
      return row.node;
    }

    function tableNode() {
      const heads = docs.map((_, i) =>
        FG.el(
          "th",
          { scope: "col" },
          `${nameOf(i)} `,
          FG.el("button", { type: "button", onclick: () => takeAll(i) }, t("Take all of {name}", { name: nameOf(i) })),
        ),
      );
      let number = 0;
      const nodes = rows.map((row) => rowNode(row, row.difference ? ++number : 0));
      const texts = FG.el("tr", {}, FG.el("th", { scope: "row" }, t("Text")), docs.map(textCell));
      return FG.el(
        "table",
        {},
        FG.el("thead", {}, FG.el("tr", {}, FG.el("td", {}), heads)),
        FG.el("tbody", {}, texts, nodes),
      );
    }

    // Show the annotations of a new item.
    page.openAnnotations = function () {
      docs = FG.annotationsOf(schema, page.row);
      views = [];
      at = -1;
      rows = FG.markGroups(docs).map(markRow);
      rows.push(...FG.missingGroups(schema, docs).map(missingRow));
      if (docs.length && schema.correction) rows.push(correctionRow());
      if (docs.some(({ comment }) => comment)) rows.push(commentRow());
      $("annotations").hidden = !docs.length;
      if (!docs.length) {
        $("annotations").replaceChildren();
        return;
      }
      const count = differences().length,
        keys = FG.isTouch
          ? ""
          : ` ${t("“.” goes to the next one, “,” to the previous one, Enter takes.")}`;
      $("annotations").replaceChildren(
        FG.el("h3", {}, t("Annotations to decide between")),
        FG.el("p", { class: "hint" }, tn("{n} difference.", "{n} differences.", { n: count }) + keys),
        FG.el("div", { class: "columns", role: "region", "aria-label": t("Annotations"), tabindex: "0" }, tableNode()),
      );
    };

    // Show which annotations the work on the item agrees with.
    page.showTaken = function () {
      for (const { cells } of rows)
        for (const { button, isTaken } of cells)
          if (button) button.setAttribute("aria-pressed", String(isTaken()));
    };

    // Go to the next difference, or with `by` -1 to the previous one.
    page.goDifference = function (by) {
      const all = differences(),
        focused = all.findIndex(({ node }) => node.contains(document.activeElement));
      if (!docs.length) return page.refuse(t("This item has no annotations to decide between."));
      if (!all.length) return page.refuse(t("The annotations do not differ."));
      if (focused >= 0) at = focused;
      else if (at < 0 && by < 0) at = 0;
      at = (at + by + all.length) % all.length;
      all[at].cells[0].button.focus();
      FG.say(t("{row} ({n} of {total}).", { row: all[at].head, n: at + 1, total: all.length }));
      return true;
    };
  };
})(window.FG);
