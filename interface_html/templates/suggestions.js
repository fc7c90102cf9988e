// Suggested errors, which annotators accept, change or reject: the same rules and fields as in suggestions.py.
// suggesting.js shows them.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const ITEM_KEYS = ["suggestions", "suggestions_shown", FG.COMPARISONS, FG.RATED],
    KEYS = ["type", "start", "end", "explanation", "score", "source"],
    ORIGIN_KEYS = ["index", "source", "score", "verdict"];
  const isInt = (x) => typeof x === "number" && Number.isInteger(x);
  const isObject = (x) => x !== null && typeof x === "object" && !Array.isArray(x);
  const isProbability = (x) => typeof x === "number" && x >= 0 && x <= 1;
  const listOf = (value) => (Array.isArray(value) ? value : []);
  const without = (values, ...keys) =>
    Object.fromEntries(Object.entries(values).filter(([key]) => !keys.includes(key)));

  // The keys of an item's row that no feedback row has.
  FG.itemKeys = (row) => Object.fromEntries(Object.entries(row).filter(([key]) => ITEM_KEYS.includes(key)));
  FG.withoutItemKeys = (row) => without(row, ...ITEM_KEYS);

  // An annotation as in the row of a feedback file.
  FG.withoutDecisions = (doc) => ({
    ...without(doc, "suggestions"),
    errors: doc.errors.map((error) => without(error, "origin")),
  });

  // ---- in an item --------------------------------------------------------------------------------------------
  // The problems of an item's suggestions: [{field, reason}].
  FG.itemSuggestionProblems = function (schema, row) {
    const problems = [],
      add = (field, reason) => problems.push({ field, reason });
    if (!("suggestions" in row)) {
      if ("suggestions_shown" in row) add("suggestions_shown", "is set, but there are no `suggestions`");
      return problems;
    }
    if (!Array.isArray(row.suggestions)) add("suggestions", "must be a list");
    if ("suggestions_shown" in row && typeof row.suggestions_shown !== "boolean")
      add("suggestions_shown", "must be true or false");
    if (problems.length) return problems;
    const firstIndex = new Map();
    row.suggestions.forEach((suggestion, i) => {
      const field = `suggestions[${i}]`,
        wrong = suggestionProblems(schema, suggestion, row, field);
      problems.push(...wrong);
      if (wrong.length) return;
      const { type, start, end } = suggestion,
        content = JSON.stringify([type, FG.sideOf(suggestion), start, end]);
      if (firstIndex.has(content)) add(field, `repeats suggestions[${firstIndex.get(content)}]`);
      else firstIndex.set(content, i);
    });
    return problems;
  };

  function suggestionProblems(schema, suggestion, row, field) {
    if (!isObject(suggestion)) return [{ field, reason: "must be an object" }];
    const problems = [],
      add = (key, reason) => problems.push({ field: `${field}.${key}`, reason });
    const { type, start, end, explanation, score, source } = suggestion;
    const keys = schema.mark_outputs ? [...KEYS, "output"] : KEYS;
    for (const key of Object.keys(suggestion)) if (!keys.includes(key)) add(key, "is not known");
    const kind = schema.errors.find(({ name }) => name === type);
    if (!kind || kind.positive || FG.kindSide(kind) === FG.SOURCE)
      add("type", "is not a kind of error of this task");
    if (typeof explanation !== "string") add("explanation", "must be text");
    if (typeof source !== "string" || !FG.strip(source)) add("source", "must be text that is not blank");
    if (!isProbability(score)) add("score", "must be a number from 0 to 1");
    if (!isInt(start)) add("start", "must be an integer");
    if (!isInt(end)) add("end", "must be an integer");
    const hasOutput = "output" in suggestion,
      wrongOutput = hasOutput && schema.mark_outputs ? FG.outputProblems(schema, suggestion.output, field) : [],
      hasText = schema.mark_outputs ? !wrongOutput.length : !hasOutput;
    problems.push(...wrongOutput);
    if (isInt(start) && isInt(end) && hasText) {
      const points = FG.points(row[FG.sideKey(schema, FG.sideOf(suggestion))]);
      problems.push(...FG.spanProblems(schema, points, start, end, field));
    }
    return problems;
  }

  FG.shownSuggestions = (row) => (row.suggestions_shown === false ? [] : row.suggestions || []);

  // ---- in an annotation --------------------------------------------------------------------------------------
  const isSame = (error, suggestion) =>
    error["error type"] === suggestion.type &&
    error.start === suggestion.start &&
    error.end === suggestion.end;

  // Decisions of the annotation `doc` that do not fit the suggestions of the item's row: [{field, reason}].
  FG.decisionProblems = function (row, doc) {
    const suggestions = FG.shownSuggestions(row),
      decided = new Map(),
      problems = [];
    doc.errors.forEach((error, i) => {
      if (!("origin" in error)) return;
      const field = `feedback.errors[${i}].origin`,
        wrong = checkDecision(error.origin, ORIGIN_KEYS, suggestions, decided, field);
      problems.push(...wrong);
      if (!wrong.length) problems.push(...originProblems(error, suggestions[error.origin.index], field));
    });
    if ("suggestions" in doc && !Array.isArray(doc.suggestions))
      problems.push({ field: "feedback.suggestions", reason: "must be a list" });
    listOf(doc.suggestions).forEach((rejection, i) => {
      const field = `feedback.suggestions[${i}]`,
        wrong = checkDecision(rejection, ["index", "verdict"], suggestions, decided, field);
      if (!wrong.length && rejection.verdict !== "rejected")
        wrong.push({ field: `${field}.verdict`, reason: "must be rejected" });
      problems.push(...wrong);
    });
    return problems;
  };

  // The problems of a decision with these keys. `decided` has the place of the decision on each suggestion.
  function checkDecision(decision, keys, suggestions, decided, field) {
    if (!isObject(decision)) return [{ field, reason: "must be an object" }];
    const problems = [],
      add = (key, reason) => problems.push({ field: `${field}.${key}`, reason });
    for (const key of Object.keys(decision)) if (!keys.includes(key)) add(key, "is not known");
    for (const key of keys) if (!(key in decision)) add(key, "is missing");
    const { index } = decision;
    if (!("index" in decision)) return problems;
    if (!isInt(index)) add("index", "must be an integer");
    else if (index < 0 || index >= suggestions.length)
      add("index", `${index} does not exist: the page shows ${suggestions.length}`);
    else if (decided.has(index)) add("index", `suggestion ${index} is also decided by ${decided.get(index)}`);
    else decided.set(index, field);
    return problems;
  }

  function originProblems(error, suggestion, field) {
    const problems = [],
      { origin } = error;
    if (FG.sideOf(error) !== FG.sideOf(suggestion))
      problems.push({ field: `${field}.index`, reason: `suggestion ${origin.index} is in another text` });
    for (const key of ["source", "score"])
      if (origin[key] !== suggestion[key])
        problems.push({ field: `${field}.${key}`, reason: `differs from the suggestion's, ${suggestion[key]}` });
    const verdict = isSame(error, suggestion) ? "accepted" : "changed";
    if (origin.verdict !== verdict) problems.push({ field: `${field}.verdict`, reason: `must be ${verdict}` });
    return problems;
  }

  // The verdict on each shown suggestion; null if it is undecided.
  FG.verdicts = function (row, doc) {
    const result = FG.shownSuggestions(row).map(() => null);
    for (const { origin } of doc.errors) if (origin) result[origin.index] = origin.verdict;
    for (const { index, verdict } of listOf(doc.suggestions)) result[index] = verdict;
    return result;
  };

  // The suggestions without a decision: [{field, reason}].
  FG.undecidedProblems = function (row, doc) {
    const reason = "is not decided: accept, change or reject it";
    return FG.verdicts(row, doc).flatMap((verdict, i) =>
      verdict === null ? [{ field: `feedback.suggestions[${i}]`, reason }] : [],
    );
  };

  // {shown, verdicts} of an annotation, for record.json; null without an annotation or without suggestions.
  FG.decisionsRecord = function (row, doc) {
    if (!doc || !row.suggestions) return null;
    const verdicts = FG.verdicts(row, FG.withSuggestionList(row, doc));
    return { shown: row.suggestions_shown !== false, verdicts };
  };

  // The annotation with the verdicts that follow from its errors.
  FG.withVerdicts = function (row, doc) {
    const suggestions = FG.shownSuggestions(row);
    if (!suggestions.length) return doc;
    const judged = (error) => {
      const verdict = isSame(error, suggestions[error.origin.index]) ? "accepted" : "changed";
      return error.origin.verdict === verdict ? error : { ...error, origin: { ...error.origin, verdict } };
    };
    return { ...doc, errors: doc.errors.map((error) => (error.origin ? judged(error) : error)) };
  };

  // The annotation of an item whose suggestions may have changed since it was stored: with a list of rejections exactly
  // if suggestions are shown. Decisions that do not fit are removed.
  FG.withSuggestionList = function (row, doc) {
    const isShown = FG.shownSuggestions(row).length > 0;
    if (isShown && !FG.decisionProblems(row, doc).length) return { ...doc, suggestions: doc.suggestions || [] };
    const plain = FG.withoutDecisions(doc);
    return isShown ? { ...plain, suggestions: [] } : plain;
  };
})(window.FG);
