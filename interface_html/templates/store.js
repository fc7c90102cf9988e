// Items from a file, and work in this browser's storage until it is downloaded. On served pages api.js replaces
// `FG.openStore`.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const HISTORY = 200; // steps that can be undone

  // localStorage; or memory, which a reload clears, with the reason.
  FG.openStorage = function () {
    try {
      const storage = window.localStorage,
        probe = "fgrlhf/probe";
      storage.setItem(probe, "1");
      storage.removeItem(probe);
      return { storage, reason: null };
    } catch (error) {
      const values = new Map();
      const storage = {
        getItem: (k) => (values.has(k) ? values.get(k) : null),
        setItem: (k, v) => values.set(k, v),
        removeItem: (k) => values.delete(k),
      };
      return {
        storage,
        reason:
          "This browser stores nothing for this page: a reload loses your work. Download feedback.json before you close it.",
      };
    }
  };

  // ---- items of a file ---------------------------------------------------------------------------------------
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
    const { context, outputs, noun } = schema.fields;
    for (const key of textKeys(schema))
      if (typeof row[key] !== "string")
        throw new Error(`\`${key}\` ${row[key] === undefined ? "is missing" : "must be text"}`);
    if (context && !isContext(row[context.key]))
      throw new Error(
        `\`${context.key}\` must be a list: for each ${context.noun} a list of its title and its sentences`,
      );
    for (const key of outputs)
      if (!FG.strip(row[key])) throw new Error(`\`${key}\` is empty: there is no ${noun} to judge`);
    if ("feedback" in row && !isAnnotation(schema, row.feedback))
      throw new Error(
        "`feedback` does not have the form that this page writes: correct it, or open the file without it",
      );
    if ("preference" in row && !isPreference(schema, row.preference))
      throw new Error(
        `\`preference\` must have a 0, 1 or 2 for each of the ${FG.pairs(schema).length} pairs`,
      );
  }

  // Whether earlier feedback has a form that can be shown. The rules are checked when it is submitted.
  function isAnnotation(schema, feedback) {
    const isList = (list, isEntry) =>
      Array.isArray(list) && list.every((entry) => entry && typeof entry === "object" && isEntry(entry));
    const isOf = (kinds, entry) => kinds.some((kind) => kind.name === entry["error type"]);
    const isError = (error) =>
      isOf(schema.errors, error) &&
      typeof error.explanation === "string" &&
      Number.isInteger(error.start) &&
      Number.isInteger(error.end);
    const isMissing = (info) => {
      if (!schema.fields.context || !isOf(schema.missing, info)) return false;
      const { source, sentences } = FG.missingIds(schema, info);
      return Number.isInteger(source) && Array.isArray(sentences) && sentences.every(Number.isInteger);
    };
    return Boolean(
      feedback &&
      isList(feedback.errors, isError) &&
      isList(feedback["missing-info"], isMissing) &&
      typeof feedback["corrected-prediction"] === "string",
    );
  }

  const isPreference = (schema, preference) =>
    Array.isArray(preference) &&
    preference.length === FG.pairs(schema).length &&
    preference.every((value) => [0, 1, 2].includes(value));

  function readItem(schema, row, number) {
    try {
      if (row === null || typeof row !== "object" || Array.isArray(row)) throw new Error("must be an object");
      const { id, ...rest } = row,
        itemRow = FG.format.itemRow(schema, rest);
      checkItemRow(schema, itemRow);
      return { id: typeof id === "string" ? id : String(number), row: itemRow };
    } catch (error) {
      throw new Error(`row ${number} of the file: ${error.message}`);
    }
  }

  // The items of a file's text: [{id, key, row}]. Throws an Error with row and reason.
  FG.readItems = function (schema, text) {
    let rows;
    if (/^\s*</.test(text))
      throw new Error("it is a page: make items of it first with fgrlhf feedback items");
    try {
      rows = [JSON.parse(text)].flat();
    } catch (error) {
      throw new Error(`the file is not valid JSON (${error.message})`);
    }
    if (!rows.length) throw new Error("the file must hold a JSON array with at least one row");
    const copies = new Map(); // two rows with the same content are two items
    return rows.map((values, number) => {
      const { id, row } = readItem(schema, values, number);
      const content = FG.sha256(JSON.stringify(schema.row.map((key) => row[key]))).slice(0, 16);
      const copy = copies.get(content) || 0;
      copies.set(content, copy + 1);
      return { id, key: copy ? `${content}.${copy}` : content, row };
    });
  };

  class DiskStore {
    constructor(schema, page) {
      Object.assign(this, { schema, page, items: [], served: false, warning: null }, FG.openStorage());
      this.warning = this.reason;
      const inline = document.getElementById("items");
      if (inline) this.items = FG.readItems(schema, inline.textContent);
      else {
        const stored = this.storage.getItem(this.name("items"));
        if (stored)
          try {
            this.items = FG.readItems(schema, stored);
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
          "This browser's storage is full: a reload loses what you do from now on. Download feedback.json, then clear finished work.";
        return false;
      }
    }

    // Open the content of a file. Returns a notice, or null.
    take(text) {
      this.items = FG.readItems(this.schema, text);
      const rows = this.items.map((item) => ({
        id: item.id,
        ...FG.format.feedbackRow(this.schema, item),
      }));
      try {
        this.storage.setItem(this.name("items"), JSON.stringify(rows));
        return null;
      } catch (error) {
        this.storage.removeItem(this.name("items"));
        return "The file is too large for this browser's storage: open it again after a reload. Your annotations are stored.";
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

    // An item with its feedback: submitted on either page, or else from the file.
    judged(item) {
      const annotation = this.read(item, "annotation"),
        comparison = this.read(item, "comparison"),
        row = { ...item.row };
      if (annotation && annotation.submitted) row.feedback = annotation.submitted;
      if (comparison && comparison.submitted) row.preference = comparison.submitted.preference;
      return { ...item, row };
    }

    isDone(item) {
      const feedbackKey = this.page === "annotation" ? "feedback" : "preference",
        state = this.read(item);
      return Boolean(state && state.submitted) || item.row[feedbackKey] !== undefined;
    }

    get done() {
      return this.items.filter((item) => this.isDone(item));
    }

    // The rows that are done on this page, as a feedback file.
    text() {
      return FG.pythonJson(
        this.done.map((item) => FG.format.feedbackRow(this.schema, this.judged(item))),
      );
    }

    // Data that the rows of a feedback file cannot hold: the order in which outputs were shown, and active seconds.
    record() {
      const seconds = (state) => (state && state.submitted ? Math.round(state.seconds * 10) / 10 : null);
      const entries = this.done.map((item) => {
        const annotation = this.read(item, "annotation"),
          comparison = this.read(item, "comparison");
        const order = comparison && comparison.submitted ? comparison.order : null;
        return {
          id: item.id,
          order,
          seconds: { annotation: seconds(annotation), comparison: seconds(comparison) },
        };
      });
      return JSON.stringify(entries, null, 2);
    }

    submit(item, state) {
      state.submitted = FG.clone(state.doc);
      return Promise.resolve(this.save(item, state));
    }
  }

  FG.openStore = (schema, page) => Promise.resolve(new DiskStore(schema, page));

  // The work on one item: document, undo and redo steps, active seconds. `doc` is replaced, never changed in place.
  FG.Work = class {
    constructor(store, item, fresh) {
      const stored = store.read(item) || {},
        empty = { doc: fresh, undo: [], redo: [], seconds: 0, submitted: null };
      Object.assign(this, { store, item, state: stored.doc ? stored : { ...empty, ...stored } });
      this.before = null;
    }

    get doc() {
      return this.state.doc;
    }
    get changed() {
      return !FG.same(this.state.doc, this.state.submitted);
    }

    // Make `after` the document. Changes with the same `key` within 1.5 seconds are one step.
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

    // Count active time; gaps of more than half a minute are left out.
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
