// The differences between the annotations of an item, which an adjudicator decides one by one: the same differences and
// names as in differences.py.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const { t } = FG;
  const CORRECTION = "corrected-prediction",
    MISSING = "missing-info";

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
  FG.plainError = ({ quote, origin, ...error }) => error;

  // The parts in which the marks of a place can differ.
  const PARTS = [
    [t("different kinds"), (error) => error["error type"]],
    [t("different spans"), ({ start, end }) => [start, end]],
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
      marks = docs.flatMap((doc, i) => doc.errors.map((error) => ({ error: FG.plainError(error), i })));
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

  const PEOPLE = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  // Annotators are named A, B, ...: who they are must not count.
  FG.personName = (i) => PEOPLE[i % 26] + (i < 26 ? "" : Math.floor(i / 26));

  // "A", "A and B", "A, B and C"
  FG.listedPeople = function (numbers) {
    const names = numbers.map(FG.personName),
      last = names.at(-1);
    if (names.length < 2) return names.join("");
    return t("{first} and {last}", { first: names.slice(0, -1).join(", "), last });
  };

  const numbersOf = (has) => has.flatMap((isOne, i) => (isOne ? [i] : []));

  // How the annotations of a group differ, in words; "" if they do not.
  FG.markDifference = function (cells) {
    const contents = cells.map(contentOf);
    if (FG.allSame(contents)) return "";
    const has = cells.map((errors) => errors.length > 0),
      given = contents.filter((content) => content.length);
    const reasons = has.every(Boolean)
      ? []
      : [t("marked by {names} only", { names: FG.listedPeople(numbersOf(has)) })];
    PARTS.forEach(([name], part) => {
      const values = given.map((content) => JSON.stringify(content.map((error) => error[part])));
      if (!FG.allSame(values)) reasons.push(name);
    });
    return reasons.join(", ");
  };

  // ---- places: what the annotations say about one part of an item ----------------------------------------------
  // A place is {name, difference, same, side, range, of(doc), put(doc, from)}. `difference` says how the annotations
  // differ there, "" if they do not. of(doc) is what an annotation says there, as JSON; put(doc, from) is the part of the
  // annotation `doc` that says there what `from` says.
  function markPlace({ side, start, end, cells }) {
    const isHere = (error) => FG.sideOf(error) === side && error.start < end && start < error.end,
      here = (doc) => doc.errors.filter(isHere);
    return {
      name: `${side} ${start}-${end}`,
      difference: FG.markDifference(cells),
      same: t("The same mark"),
      side,
      range: [start, end],
      of: (doc) => JSON.stringify(contentOf(here(doc))),
      put: (doc, from) => ({
        errors: [...doc.errors.filter((error) => !isHere(error)), ...FG.clone(here(from)).map(FG.plainError)],
      }),
      errors: here,
    };
  }

  function infoName(schema, info) {
    const { source, sentences } = FG.missingIds(schema, info);
    return `missing ${info["error type"]} ${source}:${[...sentences].sort((a, b) => a - b).join(",")}`;
  }

  // The places of the missing information of all annotations, each once.
  function missingPlaces(schema, docs) {
    const infos = new Map();
    for (const doc of docs)
      for (const info of doc[MISSING])
        if (!infos.has(infoName(schema, info))) infos.set(infoName(schema, info), info);
    return [...infos].map(([name, info]) => {
      const isIt = (other) => infoName(schema, other) === name,
        has = docs.map((doc) => doc[MISSING].some(isIt));
      return {
        name,
        difference: has.every(Boolean)
          ? ""
          : t("missing information, given by {names} only", { names: FG.listedPeople(numbersOf(has)) }),
        same: t("The same missing information"),
        range: null,
        of: (doc) => JSON.stringify(doc[MISSING].some(isIt)),
        put: (doc, from) => ({
          [MISSING]: [...doc[MISSING].filter((other) => !isIt(other)), ...FG.clone(from[MISSING].filter(isIt))],
        }),
        info,
      };
    });
  }

  function correctionPlace(docs) {
    return {
      name: "correction",
      difference: FG.allSame(docs.map((doc) => doc[CORRECTION])) ? "" : t("different corrections"),
      same: t("The same correction"),
      range: null,
      of: (doc) => JSON.stringify(doc[CORRECTION]),
      put: (doc, from) => ({ [CORRECTION]: from[CORRECTION] }),
      isCorrection: true,
    };
  }

  // The places of some annotations, in the order of the page.
  FG.placesOf = function (schema, docs) {
    if (!docs.length) return [];
    return [
      ...FG.markGroups(docs).map(markPlace),
      ...missingPlaces(schema, docs),
      ...(schema.correction ? [correctionPlace(docs)] : []),
    ];
  };

  // What the annotations say about a place: [{people, doc}], each once. `people` are the numbers of those who say it,
  // and `doc` is the annotation of the first.
  FG.versionsOf = function ({ of }, docs) {
    const versions = new Map();
    docs.forEach((doc, i) => {
      if (!versions.has(of(doc))) versions.set(of(doc), { people: [], doc });
      versions.get(of(doc)).people.push(i);
    });
    return [...versions.values()];
  };

  // The version that more annotators gave than any other; null if no version leads.
  FG.majorityOf = function (place, docs) {
    const [first, second] = FG.versionsOf(place, docs).sort((a, b) => b.people.length - a.people.length);
    return second && second.people.length === first.people.length ? null : first;
  };

  // ---- decisions: {difference: how} in the annotation of an adjudicator ----------------------------------------
  // The annotation from which an adjudicator starts: the majority of each place; without one, what all annotations share.
  // No difference is decided yet.
  FG.startOf = function (schema, row, docs) {
    const { annotator, revision, ...shared } = row.shared;
    let doc = FG.clone(shared);
    for (const place of FG.placesOf(schema, docs)) {
      const majority = FG.majorityOf(place, docs);
      if (majority) doc = { ...doc, ...place.put(doc, majority.doc) };
    }
    return { ...doc, decisions: {} };
  };

  // The annotation `after` with a decision of its own on each place that was changed from `before`.
  FG.withOwnDecisions = function (places, before, after) {
    const changed = places.filter(({ difference, of }) => difference && of(before) !== of(after));
    if (!changed.length) return after;
    const own = Object.fromEntries(changed.map(({ name }) => [name, "own"]));
    return { ...after, decisions: { ...after.decisions, ...own } };
  };
})(window.FG);
