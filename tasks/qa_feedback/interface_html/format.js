// The rows of qa-feedback files, as in ../feedback_format.py: an item's row is the file's row.
"use strict";
(function (FG) {
  const ANNOTATION_KEYS = ["errors", "missing-info", "corrected-prediction"],
    ERROR_KEYS = ["error type", "explanation", "start", "end"],
    MISSING_KEYS = ["error type", "passage_id", "sentence_id"],
    NO_ANSWER = "No answer."; // the text to judge if a policy's response is blank

  function without(values, ...keys) {
    return Object.fromEntries(Object.entries(values).filter(([key]) => !keys.includes(key)));
  }

  // The same values with some keys first and others left out.
  function ordered(values, first, ...leaveOut) {
    const head = Object.fromEntries(first.map((key) => [key, values[key]]));
    return { ...head, ...without(values, ...first, ...leaveOut) };
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

  const ATTRIBUTE = /([^\s=>"']+)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+))?/g,
    TAG = /<\w+((?:\s+[^\s=>"']+(?:\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'>]+))?)*)\s*\/?>/g;

  // The `value` of a page's element `prompt`, or null. Only this attribute is parsed as HTML.
  function promptValue(page) {
    for (const [, text] of page.matchAll(TAG)) {
      const attributes = new Map([...text.matchAll(ATTRIBUTE)].map(([, name, value]) => [name, value]));
      if (!/^["']?prompt["']?$/.test(attributes.get("id")) || !attributes.has("value")) continue;
      const parsed = new DOMParser().parseFromString(`<p value=${attributes.get("value")}>`, "text/html");
      return parsed.querySelector("p").getAttribute("value");
    }
    return null;
  }

  // A passage as [title, sentence, ...]. The content of {wikipage, content} is split into sentences.
  function passageOf(passage) {
    const { wikipage, content } = passage || {};
    if (typeof wikipage !== "string" || typeof content !== "string") return passage;
    const points = FG.points(content);
    return [wikipage, ...FG.sentences(points).map(([start, end]) => FG.cut(points, start, end))];
  }

  // The row of a line of samples.jsonl: {question, passages, predictions}. It has no reference answer.
  function rowOfSample(schema, sample) {
    const row = { gold: "", ...sample };
    schema.fields.outputs.forEach((key, i) => {
      const text = sample.predictions[i];
      row[key] = typeof text === "string" && !FG.strip(text) ? NO_ANSWER : text;
    });
    if (Array.isArray(row.passages)) row.passages = row.passages.map(passageOf);
    return Object.fromEntries(schema.row.filter((key) => key in row).map((key) => [key, row[key]]));
  }

  FG.format = {
    itemRow(schema, row) {
      return Array.isArray(row.predictions) ? rowOfSample(schema, row) : rowOfPayload(row);
    },

    // The rows of a published annotation page: `<p id="prompt" value='{"id": ..., "question": ...}'>`.
    pageRows(text) {
      const value = promptValue(text);
      if (!value) throw new Error("it is not a published page: it has no element `prompt` with a value");
      return [JSON.parse(value)];
    },

    feedbackRow(schema, item) {
      const { preference } = item.row,
        feedback = item.row.feedback && FG.withoutDecisions(item.row.feedback),
        row = FG.withoutItemKeys(without(item.row, "feedback", "preference"));
      if (feedback) {
        row.feedback = ordered(feedback, ANNOTATION_KEYS, "no-error", "comment", "flag", "decisions");
        row.feedback.errors = feedback.errors.map((error) => ordered(error, ERROR_KEYS, "quote"));
        row.feedback["missing-info"] = feedback["missing-info"].map((info) => ordered(info, MISSING_KEYS));
      }
      if (preference) row.preference = preference;
      return row;
    },
  };
})(window.FG);
