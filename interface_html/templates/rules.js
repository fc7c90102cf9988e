// The rules of annotations and comparisons: the same rules and fields as in rules.py, so that page and server agree.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const isInt = (x) => typeof x === "number" && Number.isInteger(x);

  FG.kind = (schema, name) => [...schema.errors, ...schema.missing].find((kind) => kind.name === name);
  // The errors of an annotation, without the spans that are liked, and how many errors and missing items it has.
  FG.isLiked = (schema, error) => Boolean(FG.kind(schema, error["error type"])?.positive);
  FG.errorsOf = (schema, doc) => doc.errors.filter((error) => !FG.isLiked(schema, error));
  FG.countErrors = (schema, doc) => FG.errorsOf(schema, doc).length + doc["missing-info"].length;
  FG.likedKinds = (schema) => schema.errors.filter((kind) => kind.positive);

  // The severities of a schema, each {name, label, letter, key}, with the same defaults as in schema.py.
  FG.severities = function (schema) {
    const given = (schema.severities || []).map((value) => (typeof value === "string" ? { name: value } : value)),
      letters = given.map(({ letter }) => letter),
      keys = given.map(({ key }) => key);
    function first(name, possible, used) {
      const letter = [...name].find((one) => possible.test(one) && !used.includes(one));
      used.push(letter);
      return letter;
    }
    return given.map((value) => ({
      ...value,
      label: value.label || value.name,
      letter: value.letter || first(value.name.toLowerCase(), /[a-z]/, letters),
      key: value.key || first(value.name.toUpperCase(), /[ABDFHIJKLMOQRTUVWZ]/, keys), // no other key of the page
    }));
  };

  FG.textKey = (schema) => schema.fields.outputs[0];
  FG.SOURCE = "source";
  FG.RESPONSE = "response";
  FG.kindSide = (kind) => kind.side || FG.RESPONSE;
  // The side of the marks in an output: "response" for the first, "output 1" for the next one.
  FG.outputSide = (index) => (index ? `output ${index}` : FG.RESPONSE);
  const indexOf = (side) => (side === FG.RESPONSE ? 0 : Number(side.replace("output ", "")));
  // The sides of the outputs in which errors are marked.
  FG.outputSides = (schema) => (schema.mark_outputs ? schema.fields.outputs.map((_, i) => FG.outputSide(i)) : [FG.RESPONSE]);
  // The number of an output, as annotators see it.
  FG.outputNumber = (side) => indexOf(side) + 1;
  // The text in which an error is marked.
  FG.sideOf = (error) => (error.side === FG.SOURCE ? FG.SOURCE : FG.outputSide(error.output || 0));
  FG.isOutput = (schema, value) => isInt(value) && value >= 1 && value < schema.fields.outputs.length;
  // The problems of the `output` of a mark or a suggestion: [{field, reason}].
  FG.outputProblems = function (schema, output, field) {
    const reason = `${output} must be 1 to ${schema.fields.outputs.length - 1}, and left out for the first output`;
    return FG.isOutput(schema, output) ? [] : [{ field: `${field}.output`, reason }];
  };
  // Whether a kind is marked in the text of a side.
  FG.isKindOf = (kind, side) => (FG.kindSide(kind) === FG.SOURCE) === (side === FG.SOURCE);
  // What an error in the text of a side has, and an error in the first output has not.
  FG.sideParts = function (side) {
    if (side === FG.SOURCE) return { side };
    return side === FG.RESPONSE ? {} : { output: indexOf(side) };
  };
  FG.marksSource = (schema) => schema.errors.some((kind) => FG.kindSide(kind) === FG.SOURCE);
  FG.sideKey = (schema, side) => (side === FG.SOURCE ? schema.fields.title : schema.fields.outputs[indexOf(side)]);
  FG.sources = (schema, row) => (schema.fields.context ? row[schema.fields.context.key] : []);

  // ---- evidence: {source, sentences}, stored under the names that the schema gives ---------------------------
  FG.storedIds = function (schema, ids) {
    const { id, sentences } = schema.fields.context;
    return { [id]: ids.source, [sentences]: ids.sentences };
  };

  FG.evidenceText = (schema, ids) => JSON.stringify(FG.storedIds(schema, ids));

  function readIds(schema, stored) {
    const { id, sentences } = schema.fields.context;
    return { source: stored[id], sentences: stored[sentences] };
  }

  // The sentences that an explanation refers to, or null.
  FG.evidence = function (schema, explanation) {
    if (!schema.fields.context || explanation[0] !== "{") return null;
    try {
      const stored = JSON.parse(explanation),
        ids = readIds(schema, stored);
      return Array.isArray(ids.sentences) && Object.keys(stored).length === 2 ? ids : null;
    } catch (error) {
      return null;
    }
  };

  FG.missingIds = (schema, info) => readIds(schema, info);

  // Text as typed on any keyboard, with the digits and marks of ASCII: "１：２" and "١:٢" are "1:2".
  const ZEROS = [0x660, 0x6f0, 0x966, 0x9e6, 0xe50];
  function inAscii(text) {
    const ascii = text.normalize("NFKC").replace(/[\u2010-\u2015\u2212~\u301c]/g, "-").replace(/[、،؛;]/g, ",");
    return ascii.replace(/\p{Nd}/gu, (digit) => {
      const zero = ZEROS.find((code) => digit.codePointAt(0) - code >= 0 && digit.codePointAt(0) - code < 10);
      return zero ? String(digit.codePointAt(0) - zero) : digit;
    });
  }

  // "2:4,5", "2:4-6" or "2:4,2:5" -> {source, sentences} or {problem}.
  FG.parseEvidence = function (schema, text, sources) {
    const { noun } = schema.fields.context,
      parts = inAscii(text).replace(/\s*([:-])\s*/g, "$1").split(/[\s,]+/).filter(Boolean),
      ids = { source: null, sentences: [] };
    for (const part of parts) {
      const [, source, first, last] = /^(?:(\d{1,6}):)?(\d{1,6})(?:-(\d{1,6}))?$/.exec(part) || [];
      if (!first || (!source && ids.source === null))
        return { problem: `write ${noun}:sentences, such as 2:4,5 or 2:4-6 (sentence 0 is the title)` };
      if (source && ids.source !== null && Number(source) !== ids.source)
        return { problem: `an entry can point to one ${noun} only: add another entry for ${noun} ${Number(source)}` };
      ids.source ??= Number(source);
      const from = Number(first),
        to = last ? Number(last) : from;
      if (to < from) return { problem: `${part} ends before it begins` };
      // a sentence beyond the end is named below: the others after it are left out
      const end = Math.min(to, Math.max(from, (sources[ids.source - 1] || []).length));
      for (let sentence = from; sentence <= end; sentence++) ids.sentences.push(sentence);
    }
    if (ids.source === null)
      return { problem: `write ${noun}:sentences, such as 2:4,5 or 2:4-6 (sentence 0 is the title)` };
    const problem = idProblems(schema, ids, "", sources)[0];
    return problem ? { problem: problem.reason } : ids;
  };

  function idProblems(schema, ids, field, sources) {
    const { id, sentences, noun } = schema.fields.context;
    const problems = [],
      add = (key, reason) => problems.push({ field: `${field}.${key}`, reason });
    const source = sources[ids.source - 1];
    if (!isInt(ids.source)) add(id, "must be an integer");
    else if (!source)
      add(id, `${noun} ${ids.source} does not exist: there are ${sources.length}, counted from 1`);
    ids.sentences.forEach((sentence, i) => {
      if (!isInt(sentence)) add(`${sentences}[${i}]`, "must be an integer");
      else if (source && !(sentence >= 0 && sentence < source.length)) {
        add(
          `${sentences}[${i}]`,
          `sentence ${sentence} does not exist: ${noun} ${ids.source} has ${source.length - 1}, and 0 for its title`,
        );
      }
    });
    if (problems.length) return problems;
    if (!ids.sentences.length) add(sentences, "is empty: name at least one sentence");
    else if (new Set(ids.sentences).size < ids.sentences.length) add(sentences, "names a sentence twice");
    return problems;
  }

  // ---- annotations -------------------------------------------------------------------------------------------
  // The problems of the span [start, end) of a side's text alone.
  FG.spanProblems = function (schema, points, start, end, field, side = FG.RESPONSE) {
    const problems = [],
      add = (key, reason) => problems.push({ field: `${field}.${key}`, reason });
    const n = points.length,
      name = FG.sideKey(schema, side);
    if (!(start >= 0 && start < n)) add("start", `${start} is out of range: ${name} has ${n} characters`);
    if (!(end > 0 && end <= n)) add("end", `${end} is out of range: ${name} has ${n} characters`);
    else if (end <= start)
      add("end", `${end} is out of range: the span starts at ${start} and must not be empty`);
    else if (start >= 0) {
      const startsWord = start === 0 || FG.isSpace(points[start - 1]) || FG.isInnerBoundary(points, start),
        startsSentence = () => FG.sentences(points).some(([first]) => first === start),
        endsSentence = () => FG.sentences(points).some(([, last]) => last === end);
      if (FG.isSpace(points[start]) || !(startsWord || startsSentence())) add("start", `${start} is off a word boundary`);
      const endsWord = end === n || FG.isSpace(points[end]) || FG.isInnerBoundary(points, end);
      if (!endsWord && !endsSentence()) add("end", `${end} is off a word boundary`);
    }
    if (!problems.length && schema.unit === "sentence") {
      const bounds = FG.sentences(points);
      if (!bounds.some((b) => b[0] === start)) add("start", `${start} is not the start of a sentence`);
      if (!bounds.some((b) => b[1] === end)) add("end", `${end} is not the end of a sentence`);
    }
    return problems;
  };

  function evidenceProblems(schema, error, points, sources, field) {
    const needs = FG.kind(schema, error["error type"]).needs,
      text = error.explanation;
    const problem = (reason) => [{ field: `${field}.explanation`, reason }];
    if (needs === "nothing")
      return text ? problem(`must be empty: ${error["error type"]} needs no evidence`) : [];
    if (needs === "earlier text") {
      const earlier = FG.strip(text);
      if (!earlier) return problem("is empty: it must be the earlier text that is repeated");
      return FG.cut(points, 0, error.start).includes(earlier)
        ? []
        : problem("is not in the text before the span: it must be the earlier text");
    }
    const ids = FG.evidence(schema, text);
    if (!ids)
      return problem("is missing: type the contradicted sentences, such as 2:4,5, or click their numbers");
    const problems = idProblems(schema, ids, `${field}.explanation`, sources);
    if (problems.length) return problems;
    return text === FG.evidenceText(schema, ids) ? [] : problem("is not written as in the published files");
  }

  function severityProblems(schema, error, field) {
    const names = FG.severities(schema).map((severity) => severity.name),
      problem = (reason) => [{ field: `${field}.severity`, reason }];
    if (names.length && FG.isLiked(schema, error))
      return "severity" in error ? problem(`must be left out: ${error["error type"]} is no error`) : [];
    if (!("severity" in error))
      return schema.severity_required ? problem(`is missing: choose ${names.join(" or ")}`) : [];
    if (!names.length) return problem("is not known");
    return names.includes(error.severity) ? [] : problem(`${error.severity} is none of ${names.join(", ")}`);
  }

  function sideProblems(schema, error, field) {
    const problem = (reason) => [{ field: `${field}.side`, reason }];
    if ("side" in error && !FG.marksSource(schema)) return problem("is not known");
    if ("side" in error && error.side !== FG.SOURCE) return problem(`must be ${FG.SOURCE}`);
    const side = FG.kindSide(FG.kind(schema, error["error type"]));
    const isInSource = error.side === FG.SOURCE;
    return (side === FG.SOURCE) === isInSource ? [] : problem(`${error["error type"]} is marked in the ${side}`);
  }

  function outputProblems(schema, error, field) {
    if (!("output" in error)) return [];
    const problem = (reason) => [{ field: `${field}.output`, reason }],
      side = FG.kindSide(FG.kind(schema, error["error type"]));
    if (!schema.mark_outputs) return problem("is not known");
    if (side === FG.SOURCE) return problem(`must be left out: ${error["error type"]} is marked in the ${side}`);
    return FG.outputProblems(schema, error.output, field);
  }

  const LONGEST_REASON = 1000; // code points; rules.py has the same
  FG.reasonOf = (kind) => kind.reason || "none";
  const asksReasons = (schema) => schema.errors.some((kind) => FG.reasonOf(kind) !== "none");

  function reasonProblems(schema, error, field) {
    const asked = FG.reasonOf(FG.kind(schema, error["error type"])),
      { reason } = error,
      problem = (text) => [{ field: `${field}.reason`, reason: text }];
    if (!("reason" in error)) return asked === "required" ? problem("is missing: say why") : [];
    if (!asksReasons(schema)) return problem("is not known");
    if (asked === "none") return problem(`must be left out: ${error["error type"]} asks for none`);
    if (typeof reason !== "string") return problem("must be a string");
    if (/\p{Surrogate}/u.test(reason)) return problem("holds half of a surrogate pair, which is no text");
    if (!FG.strip(reason)) return problem("is blank: it must hold a text");
    return FG.points(reason).length > LONGEST_REASON
      ? problem(`is too long: at most ${LONGEST_REASON} characters`)
      : [];
  }

  // The rules that a document's comment and flag break.
  FG.noteProblems = function (schema, doc, prefix) {
    const problems = [],
      add = (key, reason) => problems.push({ field: `${prefix}${key}`, reason });
    if ("comment" in doc && schema.comment !== "optional") add("comment", "is not known");
    else if ("comment" in doc && !FG.strip(doc.comment)) add("comment", "is blank: it must hold a text");
    if ("flag" in doc && typeof doc.flag !== "boolean") add("flag", "must be a boolean");
    return problems;
  };

  // Evidence that was typed and is not yet, or cannot be, the numbers of sentences. It exists in drafts only.
  function typedProblems(schema, entry, sources, field) {
    if (!("typed" in entry)) return [];
    const { problem } = FG.parseEvidence(schema, entry.typed, sources);
    const reason = `“${entry.typed}” is not accepted: ${problem || "press Enter after it"}`;
    return [{ field: `${field}.typed`, reason }];
  }

  // The first error of a side that has a part of [start, end): its index, or -1.
  FG.overlapOf = (errors, start, end, except, side = FG.RESPONSE) =>
    errors.findIndex(
      (other, i) => i !== except && FG.sideOf(other) === side && other.start < end && start < other.end,
    );

  // All rules that the annotation `doc` of an item's row breaks: [{field, reason}].
  FG.annotationProblems = function (schema, row, doc) {
    const problems = [],
      sources = FG.sources(schema, row),
      text = row[FG.textKey(schema)],
      sides = [...FG.outputSides(schema), ...(FG.marksSource(schema) ? [FG.SOURCE] : [])],
      points = Object.fromEntries(sides.map((side) => [side, FG.points(row[FG.sideKey(schema, side)])])),
      spans = Object.fromEntries(sides.map((side) => [side, []]));
    problems.push(...FG.noteProblems(schema, doc, "feedback."));
    doc.errors.forEach((error, i) => {
      const field = `feedback.errors[${i}]`;
      if (!schema.errors.some((kind) => kind.name === error["error type"])) {
        problems.push({ field: `${field}.error type`, reason: "is not known" });
        return;
      }
      problems.push(...severityProblems(schema, error, field));
      problems.push(...reasonProblems(schema, error, field));
      problems.push(...sideProblems(schema, error, field));
      const wrongOutput = outputProblems(schema, error, field),
        kind = FG.kind(schema, error["error type"]),
        side = FG.sideOf(error);
      problems.push(...wrongOutput);
      if (wrongOutput.length || !FG.isKindOf(kind, side)) return;
      const wrong = FG.spanProblems(schema, points[side], error.start, error.end, field, side);
      problems.push(...typedProblems(schema, error, sources, field), ...wrong);
      if (!wrong.some((problem) => problem.reason.includes("out of range"))) {
        spans[side].push([error.start, error.end, i]);
        problems.push(...evidenceProblems(schema, error, points[side], sources, field));
      }
    });
    for (const list of Object.values(spans))
      problems.push(...(schema.overlap ? repeatedProblems(doc.errors, list) : overlapProblems(list)));
    problems.push(...missingProblems(schema, doc, sources));
    problems.push(...documentProblems(schema, doc, text));
    return problems;
  };

  function repeatedProblems(errors, spans) {
    const problems = [],
      firstIndex = new Map();
    for (const [start, end, i] of spans) {
      const content = JSON.stringify([start, end, errors[i]["error type"]]);
      if (firstIndex.has(content))
        problems.push({
          field: `feedback.errors[${i}]`,
          reason: `has the span and the kind of error ${firstIndex.get(content) + 1}`,
        });
      else firstIndex.set(content, i);
    }
    return problems;
  }

  function overlapProblems(spans) {
    const problems = [];
    let furthestEnd = 0,
      furthest = -1;
    for (const [start, end, i] of spans.sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2])) {
      if (start < furthestEnd)
        problems.push({ field: `feedback.errors[${i}]`, reason: `overlaps error ${furthest + 1}` });
      if (end > furthestEnd) {
        furthestEnd = end;
        furthest = i;
      }
    }
    return problems;
  }

  function missingProblems(schema, doc, sources) {
    const list = doc["missing-info"],
      problems = [],
      firstIndex = new Map();
    if (!schema.fields.context) {
      if (list.length)
        problems.push({
          field: "feedback.missing-info",
          reason: "must be empty: this task has no missing information",
        });
      return problems;
    }
    list.forEach((info, i) => {
      const field = `feedback.missing-info[${i}]`,
        ids = FG.missingIds(schema, info);
      problems.push(...typedProblems(schema, info, sources, field));
      const wrong = idProblems(schema, ids, field, sources);
      if (!schema.missing.some((kind) => kind.name === info["error type"]))
        wrong.unshift({ field: `${field}.error type`, reason: "is not known" });
      problems.push(...wrong);
      if (wrong.length) return;
      const content = JSON.stringify([
        info["error type"],
        ids.source,
        [...ids.sentences].sort((a, b) => a - b),
      ]);
      if (firstIndex.has(content))
        problems.push({ field, reason: `repeats missing item ${firstIndex.get(content) + 1}` });
      else firstIndex.set(content, i);
    });
    return problems;
  }

  // "1 error or missing item is", "2 errors or missing items are".
  FG.countMarks = (count) =>
    count === 1 ? "1 error or missing item is" : `${count} errors or missing items are`;

  function documentProblems(schema, doc, text) {
    const problems = [],
      add = (key, reason) => problems.push({ field: `feedback.${key}`, reason });
    const count = FG.countErrors(schema, doc),
      none = doc["no-error"],
      corrected = doc["corrected-prediction"];
    const isChanged = schema.correction && corrected !== text;
    if (!schema.correction && corrected !== "" && corrected !== text)
      add("corrected-prediction", "must be empty: this task has no correction");
    if (none && count) add("no-error", `is ticked, but ${FG.countMarks(count)} marked`);
    if (none && isChanged)
      add("corrected-prediction", "differs from the text although no error is marked");
    if (!none && !count)
      add("no-error", "is not ticked and no error is marked: mark an error, or tick it");
    if (!none && count && schema.correction && !isChanged)
      add("corrected-prediction", "is the unchanged text: correct what is marked");
    return problems;
  }

  // ---- comparisons: indices are those of the outputs in the row, never of the order shown ----------------------
  FG.pairs = function (schema) {
    const pairs = [],
      count = schema.fields.outputs.length;
    for (let i = 0; i < count; i++) for (let j = i + 1; j < count; j++) pairs.push([i, j]);
    return pairs;
  };

  const MOST_SEEN = { seconds: 10 ** 7, share: 1 }; // the keys of what was seen of an output

  // The rules that the judgement beside the preference, and what the annotator saw, break: [{field, reason}].
  FG.readingProblems = function (schema, doc) {
    const problems = [],
      add = (field, reason) => problems.push({ field, reason }),
      keys = Object.keys(MOST_SEEN),
      count = schema.fields.outputs.length;
    if ("all-bad" in doc && typeof doc["all-bad"] !== "boolean") add("all-bad", "must be a boolean");
    if (!("seen" in doc)) return problems;
    if (!Array.isArray(doc.seen) || doc.seen.length !== count) {
      add("seen", `must be a list of ${count}: one for each output`);
      return problems;
    }
    doc.seen.forEach((entry, i) => {
      const isObject = entry !== null && typeof entry === "object" && !Array.isArray(entry);
      if (!isObject || !FG.same(Object.keys(entry).sort(), keys)) {
        add(`seen[${i}]`, `must be an object with ${keys.join(" and ")}`);
        return;
      }
      for (const key of keys) {
        const value = entry[key];
        if (!(typeof value === "number" && value >= 0 && value <= MOST_SEEN[key]))
          add(`seen[${i}].${key}`, `is no number from 0 to ${MOST_SEEN[key]}`);
      }
    });
    return problems;
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

  // Three outputs that no ranking with ties can have: [i, j, k] where i is as good as j, j as good as k, and k better
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

  // The preferences of a ranking, 1 is best; null if a rank is missing.
  FG.fromRanks = function (pairs, ranks) {
    return pairs.map(([i, j]) => {
      if (ranks[i] === null || ranks[j] === null) return null;
      if (ranks[i] === ranks[j]) return 0;
      return ranks[i] < ranks[j] ? 1 : 2;
    });
  };
})(window.FG);
