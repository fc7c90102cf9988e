// The rows of items and feedback files: the default format, as in row_format.py. A task with other files replaces
// FG.format in its own format.js.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const { t } = FG;
  const FEEDBACK_KEYS = ["feedback", "preference", FG.RATINGS],
    FURTHER_REFERENCES = "further references", // after the first, which the pages show
    OTHER_SPANS = "other_spans";

  function rowKeys(schema) {
    const keys = ["id", "prompt", "response", "responses", "spans", "missing", "correction", "preferences"];
    if (schema.comment === "optional") keys.push("comment");
    if (schema.fields.context) keys.push("context");
    if (schema.fields.reference) keys.push("references");
    if (FG.scales(schema).length) keys.push("ratings");
    if (schema.mark_outputs) keys.push(OTHER_SPANS);
    return keys;
  }

  // The keys of an item's row to which this format gives a meaning.
  function itemKeys(schema) {
    return [...schema.row, ...FEEDBACK_KEYS, ...(schema.fields.reference ? [FURTHER_REFERENCES] : [])];
  }

  // The texts to judge: all `responses`, or the single `response`.
  function outputsOf(row) {
    return !("responses" in row) && "response" in row ? [row.response] : row.responses;
  }

  // Throws an Error unless the references are texts.
  function referencesOf({ references }) {
    const isRight = Array.isArray(references) && references.every(isText);
    if (!isRight) throw new Error(t("`{key}` must be a list of texts", { key: "references" }));
    return references.length ? references : [""];
  }

  function without(values, ...keys) {
    return Object.fromEntries(Object.entries(values).filter(([key]) => !keys.includes(key)));
  }

  const isText = (value) => typeof value === "string";
  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  const mapped = (list, change) =>
    Array.isArray(list) ? list.map((value) => (isObject(value) ? change(value) : value)) : list;

  // The values 1 and 2 for [[better, worse], ...], if they decide each pair; others are unchanged.
  function valuesOfPairs(schema, preferences) {
    const pairs = FG.pairs(schema);
    if (!Array.isArray(preferences) || preferences.length !== pairs.length) return preferences;
    const has = (i, j) => preferences.some((pair) => FG.same(pair, [i, j]));
    const values = pairs.map(([i, j]) => (has(i, j) ? 1 : has(j, i) ? 2 : null));
    return values.includes(null) ? preferences : values;
  }

  // Throws an Error unless a row with spans has a list of them for each output after the first.
  function checkOtherSpans(schema, row) {
    if (!(OTHER_SPANS in row) && !("spans" in row)) return;
    const lists = row[OTHER_SPANS],
      count = schema.fields.outputs.length - 1,
      isSpan = (span, ...wrong) => isObject(span) && !wrong.some((key) => key in span);
    const isRight =
      Array.isArray(row.spans) &&
      row.spans.every((span) => isSpan(span, "output")) &&
      Array.isArray(lists) &&
      lists.length === count &&
      lists.every((spans) => Array.isArray(spans) && spans.every((span) => isSpan(span, "output", "side")));
    if (!isRight)
      throw new Error(
        t("a row with `spans` needs `{key}` with {n} lists: the spans in each {noun} after the first", {
          key: OTHER_SPANS,
          n: count,
          noun: schema.fields.noun,
        }),
      );
  }

  const errorOf = (span) => ({
    "error type": span.label,
    explanation: "evidence" in span ? span.evidence : "",
    ...without(span, "label", "evidence"),
  });

  // The annotation in a row with `spans`; store.js checks its form.
  function annotationOf(schema, row) {
    const others = schema.mark_outputs
      ? row[OTHER_SPANS].flatMap((spans, i) => spans.map((span) => ({ ...errorOf(span), output: i + 1 })))
      : [];
    const first = mapped(row.spans, errorOf);
    const doc = {
      errors: others.length ? [...first, ...others] : first,
      "missing-info": mapped("missing" in row ? row.missing : [], (info) => ({
        "error type": info.label,
        ...without(info, "label"),
      })),
      "corrected-prediction": "correction" in row ? row.correction : "",
    };
    return schema.comment === "optional" && "comment" in row ? { ...doc, comment: row.comment } : doc;
  }

  function spanOf(schema, error) {
    const span = { start: error.start, end: error.end, label: error["error type"] };
    if (FG.kind(schema, error["error type"]).needs !== "nothing") span.evidence = error.explanation;
    for (const key of ["severity", "side", "reason"]) if (key in error) span[key] = error[key];
    return span;
  }

  FG.format = {
    // The row of an item: the texts under the keys of schema.row, earlier feedback under `feedback` and `preference`.
    // Throws an Error with the reason if a file's row is not an item.
    itemRow(schema, row) {
      const { fields } = schema,
        outputs = outputsOf(row),
        count = fields.outputs.length;
      for (const key of Object.keys(row))
        if (!rowKeys(schema).includes(key) && itemKeys(schema).includes(key))
          throw new Error(
            t("`{key}` is a key that the pages of this task use for something else: rename it", { key }),
          );
      if ("comment" in row && !("spans" in row) && rowKeys(schema).includes("comment"))
        throw new Error(t("`comment` is a comment on `spans`, which are missing: rename or remove it"));
      if (!Array.isArray(outputs) || outputs.length !== count)
        throw new Error(t("`responses` must be a list of {n} texts", { n: count }));
      if ("response" in row && row.response !== outputs[0])
        throw new Error(
          t(
            "`response` is not the first of `responses`, in which the pages mark spans: put it there, or rename it if the spans are in another text",
          ),
        );
      if (schema.mark_outputs) checkOtherSpans(schema, row);
      const [title, messages] = FG.titleOf(row);
      const texts = { [fields.title]: title };
      fields.outputs.forEach((key, i) => (texts[key] = outputs[i]));
      if (fields.context) texts[fields.context.key] = row.context;
      const [reference, ...further] = fields.reference && "references" in row ? referencesOf(row) : [""];
      if (fields.reference) texts[fields.reference.key] = reference;
      const item = {};
      for (const key of schema.row) item[key] = texts[key];
      Object.assign(item, without(row, ...rowKeys(schema)), messages);
      if (further.length) item[FURTHER_REFERENCES] = further;
      if ("spans" in row) item.feedback = annotationOf(schema, row);
      if ("preferences" in row) item.preference = valuesOfPairs(schema, row.preferences);
      if (FG.scales(schema).length && "ratings" in row) item[FG.RATINGS] = FG.ratingsOfRow(schema, row.ratings);
      return item;
    },

    // The row of a feedback file for an item with its feedback, if it has any.
    feedbackRow(schema, item) {
      const { fields } = schema,
        { feedback, preference, [FG.RATINGS]: ratings } = item.row,
        messages = FG.titleMessages(schema, item.row),
        outputs = fields.outputs.map((key) => item.row[key]),
        isMarked = Boolean(feedback) && feedback.errors.some(({ side }) => side === FG.SOURCE); // in its text
      const row = { id: item.id, prompt: (!isMarked && messages) || item.row[fields.title] };
      if (fields.context) row.context = item.row[fields.context.key];
      if (fields.reference) {
        const references = [item.row[fields.reference.key], ...(item.row[FURTHER_REFERENCES] || [])];
        if (references.some((text) => FG.strip(text))) row.references = references;
      }
      row.response = outputs[0];
      if (outputs.length > 1) row.responses = outputs;
      if (feedback) {
        const [spans, ...others] = FG.outputSides(schema).map((_, i) =>
          feedback.errors.filter((error) => (error.output || 0) === i).map((error) => spanOf(schema, error)),
        );
        row.spans = spans;
        if (schema.mark_outputs) row[OTHER_SPANS] = others;
        if (schema.missing.length)
          row.missing = feedback["missing-info"].map((info) => ({
            label: info["error type"],
            ...without(info, "error type"),
          }));
        if (schema.correction) row.correction = feedback["corrected-prediction"];
        if ("comment" in feedback) row.comment = feedback.comment;
      }
      if (preference) row.preferences = preference;
      if (ratings) row.ratings = FG.rowOfRatings(schema, ratings);
      const ownKeys = [...itemKeys(schema), ...(messages ? ["messages"] : [])];
      return { ...row, ...FG.withoutItemKeys(without(item.row, ...ownKeys)) };
    },
  };
})(window.FG);
