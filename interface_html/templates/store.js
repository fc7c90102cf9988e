// Where items come from and where work is kept: this browser's storage, until it is downloaded. Offline by itself;
// api.js replaces `FG.openStore` on served pages.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const HISTORY = 200; // steps that can be undone

  // localStorage, or a stand-in that forgets, with the reason.
  FG.openStorage = function () {
    try {
      const storage = window.localStorage,
        probe = "fgrlhf/probe";
      storage.setItem(probe, "1");
      storage.removeItem(probe);
      return { storage, reason: null };
    } catch (error) {
      const kept = new Map();
      const storage = {
        getItem: (k) => (kept.has(k) ? kept.get(k) : null),
        setItem: (k, v) => kept.set(k, v),
        removeItem: (k) => kept.delete(k),
      };
      return {
        storage,
        reason:
          "This browser keeps nothing for this page: a reload loses your work. Download feedback.json before you close it.",
      };
    }
  };

  function checkRow(schema, row, number) {
    const bad = (why) => {
      throw new Error(`row ${number} of the file: ${why}`);
    };
    if (row === null || typeof row !== "object" || Array.isArray(row)) bad("must be an object");
    if (Array.isArray(row.predictions))
      bad(
        "holds `predictions`, it is a sample: make items of it first with python -m interface_html.items",
      );
    for (const key of schema.row) {
      if (key === schema.fields.passages) {
        const good =
          Array.isArray(row[key]) &&
          row[key].every((p) => Array.isArray(p) && p.length && p.every((s) => typeof s === "string"));
        if (!good) bad(`\`${key}\` must be a list of passages, each a title and sentences`);
      } else if (typeof row[key] !== "string")
        bad(`\`${key}\` ${key in row ? "must be text" : "is missing"}`);
    }
    for (const key of schema.fields.answers)
      if (!FG.strip(row[key])) bad(`\`${key}\` is empty: there is nothing to judge`);
    if ("feedback" in row && !saidWell(schema, row.feedback))
      bad("`feedback` is not of the form that this page writes: open the file without it, or mend it");
    if ("preference" in row && !preferredWell(schema, row.preference))
      bad(`\`preference\` must have a 0, 1 or 2 for each of the ${FG.pairs(schema).length} pairs`);
  }

  // Whether earlier feedback has the shape that can be shown; whether it keeps the rules is told on submitting.
  function saidWell(schema, said) {
    const list = (x, good) =>
      Array.isArray(x) && x.every((one) => one && typeof one === "object" && good(one));
    const kind = (kinds, one) => kinds.some((k) => k.name === one["error type"]);
    const error = (e) =>
      kind(schema.errors, e) &&
      typeof e.explanation === "string" &&
      Number.isInteger(e.start) &&
      Number.isInteger(e.end);
    const missing = (m) =>
      kind(schema.missing, m) &&
      Number.isInteger(m.passage_id) &&
      Array.isArray(m.sentence_id) &&
      m.sentence_id.every(Number.isInteger);
    return Boolean(
      said &&
      list(said.errors, error) &&
      list(said["missing-info"], missing) &&
      typeof said["corrected-prediction"] === "string",
    );
  }

  const preferredWell = (schema, preference) =>
    Array.isArray(preference) &&
    preference.length === FG.pairs(schema).length &&
    preference.every((value) => [0, 1, 2].includes(value));

  // {id, question: "{JSON of the texts}"}, as published, to a row; other rows stay. See items.py.
  function publishedRow(row) {
    const { id, question, ...rest } = row || {};
    if (typeof question !== "string" || question[0] !== "{" || Object.keys(rest).length) return row;
    const inner = JSON.parse(question),
      passage = (p) => (p && Array.isArray(p.content) ? [p.wikipage, ...p.content] : p),
      passages = Array.isArray(inner.passages) && inner.passages.map(passage);
    const made = { id, question: inner.question, passages, gold: inner["gold answer"] };
    for (let i = 1; i < 5; i++)
      made[`prediction ${i}`] = inner[i === 1 ? "predicted answer" : `predicted answer ${i}`];
    return made;
  }

  // The items of a file's text: [{id, key, row}]. Throws with row and reason.
  FG.readItems = function (schema, text) {
    let rows;
    if (/^\s*</.test(text))
      throw new Error(
        "it is a page: make items of it first with python -m interface_html.items",
      );
    try {
      rows = [JSON.parse(text)].flat().map(publishedRow);
    } catch (error) {
      throw new Error(`the file is not valid JSON (${error.message})`);
    }
    if (!Array.isArray(rows) || !rows.length)
      throw new Error("the file must hold a JSON array with at least one row");
    const seen = new Map();
    return rows.map((row, i) => {
      checkRow(schema, row, i);
      const { id, ...rest } = row;
      const content = FG.sha256(JSON.stringify(schema.row.map((key) => row[key]))).slice(0, 16);
      const copies = seen.get(content) || 0; // two rows of one content are two items
      seen.set(content, copies + 1);
      return {
        id: typeof id === "string" ? id : String(i),
        key: copies ? `${content}.${copies}` : content,
        row: rest,
      };
    });
  };

  // A row with what was said of it, keys as the published files order them. See items.py.
  FG.rowWith = function (item, annotation, preference) {
    const { feedback, preference: before, ...row } = item.row;
    if (annotation) {
      row.feedback = {
        errors: annotation.errors.map((e) => ({
          "error type": e["error type"],
          explanation: e.explanation,
          start: e.start,
          end: e.end,
        })),
        "missing-info": annotation["missing-info"].map((m) => ({
          "error type": m["error type"],
          passage_id: m.passage_id,
          sentence_id: m.sentence_id,
        })),
        "corrected-prediction": annotation["corrected-prediction"],
      };
    } else if (feedback !== undefined) row.feedback = feedback;
    if (preference || before !== undefined) row.preference = preference || before;
    return row;
  };

  class DiskStore {
    constructor(schema, page) {
      Object.assign(this, { schema, page, items: [], served: false, warning: null }, FG.openStorage());
      this.warning = this.reason;
      const inline = document.getElementById("items");
      if (inline) this.items = FG.readItems(schema, inline.textContent);
      else {
        const kept = this.storage.getItem(this.name("items"));
        if (kept)
          try {
            this.items = FG.readItems(schema, kept);
          } catch (error) {
            this.storage.removeItem(this.name("items"));
          }
      }
    }

    name(what) {
      return `fgrlhf/${this.schema.task}/${what}`;
    }
    stateName(item, page) {
      return this.name(`${page || this.page}/${item.key}`);
    }

    write(name, value) {
      try {
        this.storage.setItem(name, value);
        return true;
      } catch (error) {
        this.warning =
          "This browser's storage is full: what you do now is lost on reload. Download feedback.json, then clear finished work.";
        return false;
      }
    }

    // Take a picked file's text. Returns a notice, or null.
    take(text) {
      this.items = FG.readItems(this.schema, text);
      const kept = JSON.stringify(this.items.map((item) => ({ id: item.id, ...item.row })));
      try {
        this.storage.setItem(this.name("items"), kept);
        return null;
      } catch (error) {
        this.storage.removeItem(this.name("items"));
        return "The file is too large to be kept here: open it again after a reload. What you annotate is kept.";
      }
    }

    read(item, page) {
      try {
        return JSON.parse(this.storage.getItem(this.stateName(item, page)));
      } catch (error) {
        return null;
      }
    }

    save(item, state) {
      return this.write(this.stateName(item), JSON.stringify(state));
    }
    get position() {
      return Number(this.storage.getItem(this.name(`${this.page}/position`))) || 0;
    }
    set position(i) {
      this.write(this.name(`${this.page}/position`), String(i));
    }

    // What was said of an item, by this page, by the other one, or before: {annotation, preference}.
    submitted(item) {
      const a = this.read(item, "annotation"),
        c = this.read(item, "comparison");
      return { annotation: a && a.submitted, preference: c && c.submitted ? c.submitted.preference : null };
    }

    isDone(item) {
      const own = this.page === "annotation" ? "feedback" : "preference",
        state = this.read(item);
      return Boolean(state && state.submitted) || item.row[own] !== undefined;
    }

    get done() {
      return this.items.filter((item) => this.isDone(item));
    }

    // The rows that this page is done with, as a feedback file.
    text() {
      return FG.pythonJson(
        this.done.map((item) => {
          const said = this.submitted(item);
          return FG.rowWith(item, said.annotation, said.preference);
        }),
      );
    }

    // What the format has no place for, of the same rows: the order the answers were shown in, the active seconds.
    record() {
      const seconds = (state) => (state && state.submitted ? Math.round(state.seconds * 10) / 10 : null);
      const made = this.done.map((item) => {
        const [a, c] = ["annotation", "comparison"].map((page) => this.read(item, page));
        const order = c && c.submitted ? c.order : null;
        return { id: item.id, order, seconds: { annotation: seconds(a), comparison: seconds(c) } };
      });
      return JSON.stringify(made, null, 2);
    }

    submit(item, state) {
      state.submitted = FG.clone(state.doc);
      return Promise.resolve(this.save(item, state));
    }
  }

  FG.openStore = (schema, page) => Promise.resolve(new DiskStore(schema, page));

  // One item's work: the document, steps to undo and redo, active seconds. `doc` is replaced, never changed in place.
  FG.Work = class {
    constructor(store, item, fresh) {
      const kept = store.read(item);
      Object.assign(this, {
        store,
        item,
        state:
          kept && kept.doc
            ? kept
            : { doc: fresh, undo: [], redo: [], seconds: 0, submitted: null, ...(kept || {}) },
      });
      this.before = null;
    }

    get doc() {
      return this.state.doc;
    }
    get changed() {
      return !FG.same(this.state.doc, this.state.submitted);
    }

    // Make `after` the document. Changes with one `key` within a second and a half are one step.
    commit(after, key) {
      const state = this.state,
        now = Date.now();
      if (FG.same(after, state.doc)) return;
      const joins =
        key && this.last && this.last.key === key && now - this.last.time < 1500 && state.undo.length;
      if (joins) state.undo.pop();
      else this.before = state.doc;
      state.undo.push(FG.patch(this.before, after));
      state.undo.splice(0, state.undo.length - HISTORY);
      state.redo = [];
      state.doc = after;
      this.last = key ? { key, time: now } : null;
      this.save();
    }

    step(back) {
      const state = this.state,
        from = back ? state.undo : state.redo,
        to = back ? state.redo : state.undo;
      if (!from.length) return false;
      const patch = from.pop();
      state.doc = FG.applyPatch(state.doc, patch, back);
      to.push(patch);
      this.last = null;
      this.save();
      return true;
    }

    // Time in which something was done: gaps of more than half a minute do not count.
    tick() {
      const now = Date.now(),
        gap = now - (this.moved || now);
      this.moved = now;
      if (gap < 30000) this.state.seconds += gap / 1000;
    }

    save() {
      return this.store.save(this.item, this.state);
    }
    submit() {
      this.last = null;
      return this.store.submit(this.item, this.state);
    }
  };
})(window.FG);
