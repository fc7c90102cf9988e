// The rows of qa-feedback files, as in ../feedback_format.py: an item's row is the file's row.
"use strict";
(function (FG) {
  const ANNOTATION_KEYS = ["errors", "missing-info", "corrected-prediction"],
    ERROR_KEYS = ["error type", "explanation", "start", "end"],
    MISSING_KEYS = ["error type", "passage_id", "sentence_id"];

  function without(values, ...keys) {
    return Object.fromEntries(Object.entries(values).filter(([key]) => !keys.includes(key)));
  }

  // The same values with some keys first and one left out.
  function ordered(values, first, leaveOut) {
    const head = Object.fromEntries(first.map((key) => [key, values[key]]));
    return { ...head, ...without(values, ...first, leaveOut) };
  }

  // The row of a published page's payload, {question: "{JSON of the texts}"}. Other rows are returned as they are.
  function rowOfPayload(row) {
    const { question, ...rest } = row;
    if (typeof question !== "string" || question[0] !== "{" || Object.keys(rest).length) return row;
    const texts = JSON.parse(question),
      passage = (p) => (p && Array.isArray(p.content) ? [p.wikipage, ...p.content] : p),
      passages = Array.isArray(texts.passages) && texts.passages.map(passage);
    const result = { question: texts.question, passages, gold: texts["gold answer"] };
    for (let i = 1; i <= 4; i++)
      result[`prediction ${i}`] = texts[i === 1 ? "predicted answer" : `predicted answer ${i}`];
    return result;
  }

  FG.format = {
    itemRow(schema, row) {
      if (Array.isArray(row.predictions))
        throw new Error(
          "this is a sample with `predictions`: make items of the file first with fgrlhf feedback items",
        );
      return rowOfPayload(row);
    },

    feedbackRow(schema, item) {
      const { feedback, preference } = item.row,
        row = without(item.row, "feedback", "preference");
      if (feedback) {
        row.feedback = ordered(feedback, ANNOTATION_KEYS, "no-error");
        row.feedback.errors = feedback.errors.map((error) => ordered(error, ERROR_KEYS, "quote"));
        row.feedback["missing-info"] = feedback["missing-info"].map((info) => ordered(info, MISSING_KEYS));
      }
      if (preference) row.preference = preference;
      return row;
    },
  };
})(window.FG);
