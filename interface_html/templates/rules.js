// What an annotation must keep: the rules of rules.py, with the same fields, so that a page and the server agree.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const isInt = (x) => typeof x === "number" && Number.isInteger(x);

  FG.kind = (schema, name) => [...schema.errors, ...schema.missing].find((kind) => kind.name === name);
  FG.passages = (schema, row) => (schema.fields.passages ? row[schema.fields.passages] : []);
  FG.evidenceText = (passage, sentences) =>
    `{"passage_id":${passage},"sentence_id":[${sentences.join(",")}]}`;

  // {passage_id, sentence_id} of an explanation, or null.
  FG.evidence = function (explanation) {
    try {
      const ids = explanation[0] === "{" ? JSON.parse(explanation) : null;
      return ids && Array.isArray(ids.sentence_id) && Object.keys(ids).length === 2 ? ids : null;
    } catch (error) {
      return null;
    }
  };

  // "2:4,5" -> {passage_id, sentence_id} or {problem}.
  FG.parseEvidence = function (text, passages) {
    const match = /^\s*(\d{1,6})\s*:\s*(\d{1,6}(?:\s*[, ]\s*\d{1,6})*)\s*,?\s*$/.exec(text);
    if (!match) return { problem: "write passage:sentences, such as 2:4,5 (sentence 0 is the title)" };
    const ids = { passage_id: Number(match[1]), sentence_id: match[2].split(/[\s,]+/).map(Number) };
    const wrong = idProblems(ids, "", passages)[0];
    return wrong ? { problem: wrong.reason } : ids;
  };

  function idProblems(ids, field, passages) {
    const found = [],
      say = (key, reason) => found.push({ field: `${field}.${key}`, reason });
    const passage = passages[ids.passage_id - 1];
    if (!isInt(ids.passage_id)) say("passage_id", "must be an integer");
    else if (!passage)
      say(
        "passage_id",
        `passage ${ids.passage_id} does not exist: there are ${passages.length}, counted from 1`,
      );
    ids.sentence_id.forEach((id, i) => {
      if (!isInt(id)) say(`sentence_id[${i}]`, "must be an integer");
      else if (passage && !(id >= 0 && id < passage.length)) {
        say(
          `sentence_id[${i}]`,
          `sentence ${id} does not exist: passage ${ids.passage_id} has ${passage.length - 1}, and 0 for its title`,
        );
      }
    });
    if (!found.length && !ids.sentence_id.length) say("sentence_id", "is empty: name at least one sentence");
    else if (!found.length && new Set(ids.sentence_id).size < ids.sentence_id.length)
      say("sentence_id", "names a sentence twice");
    return found;
  }

  // Whether [start, end) of a text may be marked: the problems of the stretch alone.
  FG.stretchProblems = function (schema, points, start, end, field) {
    const found = [],
      say = (key, reason) => found.push({ field: `${field}.${key}`, reason });
    const n = points.length,
      name = schema.fields.text;
    if (!(start >= 0 && start < n)) say("start", `${start} is out of range: ${name} has ${n} characters`);
    if (!(end > 0 && end <= n)) say("end", `${end} is out of range: ${name} has ${n} characters`);
    else if (end <= start)
      say("end", `${end} is out of range: the span starts at ${start} and must not be empty`);
    else if (start >= 0) {
      if (FG.isSpace(points[start]) || (start > 0 && !FG.isSpace(points[start - 1])))
        say("start", `${start} is off a word boundary`);
      if (end < n && !FG.isSpace(points[end])) say("end", `${end} is off a word boundary`);
    }
    if (!found.length && schema.unit === "sentence") {
      const bounds = FG.sentences(points);
      if (!bounds.some((b) => b[0] === start)) say("start", `${start} is not where a sentence starts`);
      if (!bounds.some((b) => b[1] === end)) say("end", `${end} is not where a sentence ends`);
    }
    return found;
  };

  function evidenceProblems(schema, error, points, passages, field) {
    const needs = FG.kind(schema, error["error type"]).needs,
      text = error.explanation;
    const say = (reason) => [{ field: `${field}.explanation`, reason }];
    if (needs === "nothing")
      return text ? say(`must be empty: ${error["error type"]} points to nothing`) : [];
    if (needs === "earlier text") {
      const earlier = FG.strip(text);
      if (!earlier) return say("is empty: it must be the earlier text that is repeated");
      return FG.cut(points, 0, error.start).includes(earlier)
        ? []
        : say("does not stand before the marked text: it must be the earlier text that is repeated");
    }
    const ids = FG.evidence(text);
    if (!ids)
      return say("is missing: type the contradicted sentences, such as 2:4,5, or click their numbers");
    const wrong = idProblems(ids, `${field}.explanation`, passages);
    if (wrong.length) return wrong;
    return text === FG.evidenceText(ids.passage_id, ids.sentence_id)
      ? []
      : say("is not written as the published files do");
  }

  FG.overlapOf = (errors, start, end, except) =>
    errors.findIndex((other, i) => i !== except && other.start < end && start < other.end);

  // Everything that keeps `doc` from being accepted as feedback on `row`: [{field, reason}].
  FG.annotationProblems = function (schema, row, doc) {
    const found = [],
      passages = FG.passages(schema, row),
      text = row[schema.fields.text],
      points = FG.points(text);
    const placed = [];
    doc.errors.forEach((error, i) => {
      const field = `feedback.errors[${i}]`;
      const kind = schema.errors.find((one) => one.name === error["error type"]);
      if (!kind) {
        found.push({ field: `${field}.error type`, reason: "is not known" });
        return;
      }
      const wrong = FG.stretchProblems(schema, points, error.start, error.end, field);
      found.push(...wrong);
      if (!wrong.some((one) => one.reason.includes("out of range"))) {
        placed.push([error.start, error.end, i]);
        found.push(...evidenceProblems(schema, error, points, passages, field));
      }
    });
    let reach = 0,
      last = -1;
    for (const [start, end, i] of placed.sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2])) {
      if (start < reach) found.push({ field: `feedback.errors[${i}]`, reason: `overlaps error ${last + 1}` });
      if (end > reach) {
        reach = end;
        last = i;
      }
    }
    found.push(...missingProblems(schema, doc, passages), ...wholeProblems(schema, doc, text));
    return found;
  };

  function missingProblems(schema, doc, passages) {
    const found = [],
      seen = new Map();
    doc["missing-info"].forEach((info, i) => {
      const field = `feedback.missing-info[${i}]`;
      const wrong = idProblems(info, field, passages);
      if (!schema.missing.some((kind) => kind.name === info["error type"]))
        wrong.unshift({ field: `${field}.error type`, reason: "is not known" });
      found.push(...wrong);
      if (wrong.length) return;
      const key = JSON.stringify([
        info["error type"],
        info.passage_id,
        [...info.sentence_id].sort((a, b) => a - b),
      ]);
      if (seen.has(key)) found.push({ field, reason: `says the same as missing item ${seen.get(key) + 1}` });
      else seen.set(key, i);
    });
    return found;
  }

  function wholeProblems(schema, doc, text) {
    const found = [],
      say = (key, reason) => found.push({ field: `feedback.${key}`, reason });
    const marked = doc.errors.length + doc["missing-info"].length,
      none = doc["no-error"];
    const changed = schema.correction && doc["corrected-prediction"] !== text;
    if (!schema.correction && doc["corrected-prediction"] !== "" && doc["corrected-prediction"] !== text) {
      say("corrected-prediction", "must be empty: this task has no correction");
    }
    if (none && marked)
      say("no-error", `is ticked, yet ${marked} error${marked > 1 ? "s" : ""} or missing items are marked`);
    if (none && changed) say("corrected-prediction", "differs from the text although no error is marked");
    if (!none && !marked)
      say("no-error", "is not ticked and nothing is marked: mark what is wrong, or tick it");
    if (!none && marked && schema.correction && !changed)
      say("corrected-prediction", "is the text itself: mend what is marked");
    return found;
  }

  // Labelled text that the correction leaves as it was, and unlabelled text that it changes. Warnings, not mistakes.
  FG.correctionWarnings = function (schema, row, doc) {
    const text = row[schema.fields.text],
      warnings = [];
    if (!schema.correction || doc["corrected-prediction"] === text) return warnings;
    const points = FG.points(text),
      changes = FG.diff(text, doc["corrected-prediction"]).filter((part) => part.op !== "same");
    doc.errors.forEach((error, i) => {
      const kind = FG.kind(schema, error["error type"]);
      const touched = changes.some(
        (c) =>
          (c.start < error.end && c.end > error.start) ||
          (c.start === c.end && c.start >= error.start && c.start <= error.end),
      );
      if (!touched && kind)
        warnings.push(`Error ${i + 1} (${kind.label}) is marked, but the correction leaves it as it was.`);
    });
    const covered = (i) =>
      FG.isSpace(points[i]) || doc.errors.some((error) => i >= error.start && i < error.end);
    for (const change of changes) {
      const words = FG.strip(change.text);
      if (change.op !== "del" || !words) continue;
      let loose = false;
      for (let i = change.start; i < change.end; i++) loose = loose || !covered(i);
      if (loose)
        warnings.push(
          `“${words.length > 60 ? words.slice(0, 60) + "…" : words}” was changed, but not all of it is marked as an error.`,
        );
    }
    if (!doc["missing-info"].length && !doc.errors.length)
      warnings.push("The answer was changed, but nothing is marked.");
    return warnings;
  };

  // ---- comparisons: indices are those of the answers in the row, never of the order shown ----------------------
  FG.pairs = function (schema) {
    const made = [],
      count = schema.fields.answers.length;
    for (let i = 0; i < count; i++) for (let j = i + 1; j < count; j++) made.push([i, j]);
    return made;
  };

  FG.findCycle = function (count, pairs, preference) {
    const better = new Set();
    pairs.forEach(([i, j], k) => {
      if (preference[k] === 1) better.add(`${i}>${j}`);
      if (preference[k] === 2) better.add(`${j}>${i}`);
    });
    for (let start = 0; start < count; start++) {
      const paths = [[start]];
      while (paths.length) {
        const path = paths.shift();
        for (let to = 0; to < count; to++) {
          if (!better.has(`${path[path.length - 1]}>${to}`)) continue;
          if (to === start) return path;
          if (!path.includes(to)) paths.push([...path, to]);
        }
      }
    }
    return null;
  };

  // Three answers whose preferences are those of no ranking with ties, [i, j, k] with i as good as j, j as k, k better
  // than i; or null.
  FG.brokenTriple = function (count, pairs, preference) {
    const worse = new Set();
    pairs.forEach(([i, j], k) => {
      if (preference[k] === 1) worse.add(`${j},${i}`);
      if (preference[k] === 2) worse.add(`${i},${j}`);
    });
    const asGood = (i, j) => !worse.has(`${i},${j}`);
    for (let i = 0; i < count; i++)
      for (let j = 0; j < count; j++)
        for (let k = 0; k < count; k++) {
          if (asGood(i, j) && asGood(j, k) && !asGood(i, k)) return [i, j, k];
        }
    return null;
  };

  FG.fromRanks = (pairs, ranks) =>
    pairs.map(([i, j]) =>
      ranks[i] === null || ranks[j] === null ? null : ranks[i] === ranks[j] ? 0 : ranks[i] < ranks[j] ? 1 : 2,
    );
})(window.FG);
