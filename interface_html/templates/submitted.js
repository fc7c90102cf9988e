// What the annotators submitted on an item, between which an adjudicator decides: the same rules and fields as in
// submitted.py.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const { t } = FG;
  FG.COMPARISONS = "submitted comparisons"; // keys in the row of an item
  FG.RATED = "submitted ratings";
  const KEYS = { annotation: "annotations", comparison: FG.COMPARISONS, rating: FG.RATED },
    NAME_KEYS = ["annotator", "revision"];

  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  const isText = (value) => value === undefined || typeof value === "string";

  function isComparison(schema, entry) {
    const { preference, "all-bad": allBad, comment } = entry,
      pairs = FG.pairs(schema),
      isValue = (value) => [0, 1, 2].includes(value);
    if (!schema.comparison || !isText(comment) || !["undefined", "boolean"].includes(typeof allBad)) return false;
    if (!Array.isArray(preference) || preference.length !== pairs.length || !preference.every(isValue)) return false;
    return !FG.findCycle(schema.fields.outputs.length, pairs, preference);
  }

  const isRating = (schema, { ratings, comment }) =>
    FG.scales(schema).length > 0 && isText(comment) && isObject(ratings) && !FG.ratingProblems(schema, ratings).length;

  // Throws an Error with the reason if an item has submitted comparisons or ratings of the wrong form.
  FG.checkSubmitted = function (schema, row) {
    const check = (key, isEntry) => {
      const entries = row[key];
      if (entries === undefined) return;
      if (Array.isArray(entries) && entries.every((entry) => isObject(entry) && isEntry(schema, entry))) return;
      throw new Error(t("`{key}` does not have the form that fgrlhf feedback adjudicate writes", { key }));
    };
    check(FG.COMPARISONS, isComparison);
    check(FG.RATED, isRating);
  };

  // The submissions of a page to decide between; [] if the item has none.
  FG.submittedOn = (row, page) => row[KEYS[page]] || [];

  // The annotator and the revision of each of these submissions; null if there is nothing to decide on the page.
  FG.decidedBetween = function (row, page) {
    const entries = FG.submittedOn(row, page);
    if (!Array.isArray(entries) || !entries.length || (page === "annotation" && !row.shared)) return null;
    return entries.filter(isObject).map((entry) => {
      const names = NAME_KEYS.filter((key) => key in entry);
      return Object.fromEntries(names.map((key) => [key, entry[key]]));
    });
  };

  const allSame = (values) => values.every((value) => FG.same(value, values[0]));
  FG.allSame = allSame;

  // The preference with the values that all comparisons have; the others are null.
  FG.sharedPreference = (schema, entries) =>
    FG.pairs(schema).map((_, k) => {
      const values = entries.map(({ preference }) => preference[k]);
      return allSame(values) ? values[0] : null;
    });

  // The ratings with the values that all have.
  FG.sharedRatings = function (schema, entries) {
    const shared = {};
    for (const output of schema.fields.outputs) {
      shared[output] = {};
      for (const { name } of FG.scales(schema)) {
        const values = entries.map(({ ratings }) => ratings[output][name]);
        if (allSame(values)) shared[output][name] = values[0];
      }
    }
    return shared;
  };

  // The rank of each output in a preference, 1 is best; null if the preference is no ranking.
  FG.toRanks = function (schema, preference) {
    const pairs = FG.pairs(schema),
      count = schema.fields.outputs.length;
    if (preference.includes(null) || FG.brokenTriple(count, pairs, preference)) return null;
    const isBetter = (a) => (pair, k) => (pair[0] === a && preference[k] === 2) || (pair[1] === a && preference[k] === 1);
    return Array.from({ length: count }, (_, a) => pairs.filter(isBetter(a)).length + 1);
  };
})(window.FG);
