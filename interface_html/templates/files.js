// The items of a file's text, with checks of their texts and their earlier feedback.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const { t } = FG;
  const LONGEST_ID = 200;

  function textKeys({ fields }) {
    const reference = fields.reference ? [fields.reference.key] : [];
    return [fields.title, ...reference, ...fields.outputs];
  }

  const isContext = (sources) =>
    Array.isArray(sources) &&
    sources.every(
      (source) =>
        Array.isArray(source) && source.length && source.every((sentence) => typeof sentence === "string"),
    );

  // Throws an Error with the reason if the texts or the feedback of an item have the wrong form.
  function checkItemRow(schema, row) {
    const { title, context, outputs, noun } = schema.fields;
    for (const key of textKeys(schema))
      if (typeof row[key] !== "string")
        throw new Error(
          row[key] === undefined ? t("`{key}` is missing", { key }) : t("`{key}` must be text", { key }),
        );
    if (!FG.strip(row[title])) throw new Error(`\`${title}\` ${FG.reason("is blank: it must hold a text")}`);
    if (context && !isContext(row[context.key]))
      throw new Error(
        t("`{key}` must be a list: for each {source} a list of its title and its sentences", {
          key: context.key,
          source: context.noun,
        }),
      );
    for (const key of outputs)
      if (!FG.strip(row[key])) throw new Error(t("`{key}` is empty: there is no {noun} to judge", { key, noun }));
    if (FG.marksSource(schema) && (FG.titleMessages(schema, row) || []).length > 1)
      throw new Error(
        t("`prompt` is a conversation, in whose turns nothing can be marked, and this task has kinds that are marked in the source: give the prompt as one text"),
      );
    const [wrong] = FG.itemSuggestionProblems(schema, row);
    if (wrong) throw new Error(`\`${wrong.field}\` ${FG.reason(wrong.reason)}`);
    FG.checkSubmitted(schema, row);
    if ("feedback" in row && !FG.isAnnotation(schema, row.feedback))
      throw new Error(
        t(
          "`feedback` does not have the form that this page writes: correct it, or open the file without it",
        ),
      );
    if ("preference" in row && !isPreference(schema, row.preference))
      throw new Error(
        t("`preference` must have a 0, 1 or 2 for each of the {n} pairs", { n: FG.pairs(schema).length }),
      );
    if (FG.RATINGS in row) {
      const [problem] = FG.ratingProblems(schema, row[FG.RATINGS]);
      if (problem) throw new Error(`\`${problem.field}\` ${FG.reason(problem.reason)}`);
    }
  }

  // Whether earlier feedback has a form that can be shown. The rules are checked when it is submitted.
  FG.isAnnotation = function (schema, feedback) {
    const isList = (list, isEntry) =>
      Array.isArray(list) && list.every((entry) => entry && typeof entry === "object" && isEntry(entry));
    const isOf = (kinds, entry) => kinds.some((kind) => kind.name === entry["error type"]);
    const isError = (error) =>
      isOf(schema.errors, error) &&
      typeof error.explanation === "string" &&
      Number.isInteger(error.start) &&
      Number.isInteger(error.end) &&
      (error.output === undefined || (schema.mark_outputs && FG.isOutput(schema, error.output))) &&
      FG.isKindOf(FG.kind(schema, error["error type"]), FG.sideOf(error)) &&
      ["severity", "reason"].every((key) => error[key] === undefined || typeof error[key] === "string");
    const isMissing = (info) => {
      if (!schema.fields.context || !isOf(schema.missing, info)) return false;
      const { source, sentences } = FG.missingIds(schema, info);
      return Number.isInteger(source) && Array.isArray(sentences) && sentences.every(Number.isInteger);
    };
    return Boolean(
      feedback &&
      isList(feedback.errors, isError) &&
      isList(feedback["missing-info"], isMissing) &&
      typeof feedback["corrected-prediction"] === "string" &&
      (feedback.comment === undefined || typeof feedback.comment === "string"),
    );
  };

  const isPreference = (schema, preference) =>
    Array.isArray(preference) &&
    preference.length === FG.pairs(schema).length &&
    preference.every((value) => [0, 1, 2].includes(value));

  function readItem(schema, row, number) {
    try {
      if (row === null || typeof row !== "object" || Array.isArray(row)) throw new Error(t("must be an object"));
      const { id = String(number), ...rest } = row;
      if (typeof id !== "string" || !id || FG.points(id).length > LONGEST_ID)
        throw new Error(t("`id` must be a text of 1 to {n} characters", { n: LONGEST_ID }));
      const itemRow = FG.format.itemRow(schema, rest);
      checkItemRow(schema, itemRow);
      return { id, row: itemRow };
    } catch (error) {
      throw new Error(t("row {n} of the file: {reason}", { n: number, reason: FG.reason(error.message) }));
    }
  }

  // The rows of a JSON array, of one JSON object, of JSON lines, or of a page that holds an item.
  function rowsOf(text) {
    if (/^\s*</.test(text)) {
      if (FG.format.pageRows) return FG.format.pageRows(text);
      throw new Error(t("it is a page: make items of it first with fgrlhf feedback items"));
    }
    let rows;
    try {
      rows = [JSON.parse(text)].flat();
    } catch (error) {
      const lines = text.split("\n").filter((line) => FG.strip(line));
      if (lines.length > 1 && isJson(lines[0])) return lines.map(lineRow);
      throw new Error(t("the file is not valid JSON ({reason})", { reason: error.message }));
    }
    checkNumbers(text);
    return rows;
  }

  // Throws an Error if JSON has a whole number that JavaScript would write as another one.
  function checkNumbers(text) {
    if (!/\d{16}/.test(text)) return;
    JSON.parse(text, (key, value, context) => {
      const { source = "" } = context || {}; // as it is written; older browsers do not tell
      if (/^-?\d+$/.test(source) && String(BigInt(source)) !== String(value))
        throw new Error(
          t("`{key}` is {number}, which a browser cannot store exactly: write it as text, in quotes", {
            key,
            number: source,
          }),
        );
      return value;
    });
  }

  function isJson(text) {
    try {
      JSON.parse(text);
      return true;
    } catch (error) {
      return false;
    }
  }

  function lineRow(line, number) {
    if (!isJson(line)) throw new Error(t("row {n} of the file is not valid JSON", { n: number }));
    checkNumbers(line);
    return JSON.parse(line);
  }

  // Throws an Error with the reason of items.py if two rows have an id.
  function checkIds(schema, items) {
    const contentOf = ({ row }) => JSON.stringify([schema.fields.title, ...schema.fields.outputs].map((key) => row[key]));
    const firstOf = new Map(); // by id: the number of the row
    items.forEach((item, number) => {
      const { id } = item;
      if (!firstOf.has(id)) {
        firstOf.set(id, number);
        return;
      }
      const first = firstOf.get(id);
      const isSame = contentOf(items[first]) === contentOf(item);
      const reason = isSame
        ? t("'{id}' is also the id of row {first}, with the same texts, as in a file of `export` with policy=all", {
            id,
            first,
          })
        : t("'{id}' is also the id of row {first}", { id, first });
      throw new Error(t("row {n} of the file: {reason}", { n: number, reason }));
    });
  }

  // The items of a file's text: [{id, key, row}]. Throws an Error with row and reason.
  FG.readItems = function (schema, text) {
    const rows = rowsOf(text);
    if (!rows.length) throw new Error(t("the file must hold a JSON array with at least one row"));
    const copies = new Map(); // two rows with the same content are two items
    const items = rows.map((values, number) => readItem(schema, values, number));
    checkIds(schema, items);
    return items.map(({ id, row }) => {
      const content = FG.sha256(JSON.stringify(schema.row.map((key) => row[key]))).slice(0, 16);
      const copy = copies.get(content) || 0;
      copies.set(content, copy + 1);
      return { id, key: copy ? `${content}.${copy}` : content, row };
    });
  };
})(window.FG);
