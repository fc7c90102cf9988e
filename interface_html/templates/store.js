// Items from a file, and work in this browser's storage until it is downloaded. Work is stored by annotator and by
// file: nobody sees or exports another's work. On served pages api.js replaces `FG.newStore`.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const { t } = FG;
  const PAGES = ["annotation", "comparison", "rating"];
  // the keys of their judgements in an item's row
  const JUDGEMENTS = { annotation: "feedback", comparison: "preference", rating: FG.RATINGS };
  const NOTES = ["comment", "flag", "all-bad"]; // keys of documents that rows of judgements do not have
  const NAME = "fgrlhf/annotator";
  const LONGEST_NAME = 60;
  const FULL = t(
    "This browser's storage is full: a reload loses what you do from now on. Download feedback.json and record.json before you close or reload this page.",
  );

  // A storage of the browser, or null for memory only. A value for which the browser has no room stays in memory, where
  // this page finds it until a reload.
  class Storage {
    constructor(browser) {
      this.browser = browser;
      this.rest = new Map(); // values that only the memory has
    }

    getItem(name) {
      if (this.rest.has(name) || !this.browser) return this.rest.get(name) ?? null;
      return this.browser.getItem(name);
    }

    // Throws the browser's error if the value is in memory only although there is a browser's storage.
    setItem(name, value) {
      this.rest.set(name, value);
      if (!this.browser) return;
      this.browser.setItem(name, value);
      this.rest.delete(name);
    }

    removeItem(name) {
      this.rest.delete(name);
      if (this.browser) this.browser.removeItem(name);
    }

    // Whether a reload would lose work on an item.
    get isVolatile() {
      return [...this.rest.keys()].some((name) => /\/(annotation|comparison|rating)\//.test(name));
    }

    names() {
      return [...new Set([...this.rest.keys(), ...Object.keys(this.browser || {})])];
    }
  }

  // The browser's storage `kind`, or null if the page may not use it. A full one can be used: it has earlier work.
  function browserStorage(kind) {
    const probe = "fgrlhf/probe";
    let storage = null;
    try {
      storage = window[kind];
      storage.setItem(probe, "1");
      storage.removeItem(probe);
      return storage;
    } catch (error) {
      return storage && storage.length && error.name === "QuotaExceededError" ? storage : null;
    }
  }

  // `storage`: localStorage, or memory with the reason. `tab`: what belongs to this tab only, also after a reload.
  FG.openStorage = function () {
    const browser = browserStorage("localStorage");
    return {
      storage: new Storage(browser),
      tab: new Storage(browserStorage("sessionStorage")),
      reason: browser
        ? null
        : t(
            "This browser stores nothing for this page: a reload loses your work. Download feedback.json before you close it.",
          ),
    };
  };

  // What belongs to this tab, such as who works in it. Another tab of the browser may be another person's, so the value
  // that was stored last in any tab counts only until this one has its own.
  FG.ofTab = function ({ tab, storage }, name) {
    const own = tab.getItem(name),
      value = own ?? storage.getItem(name);
    if (own === null && value !== null) FG.setOfTab({ tab, storage }, name, value);
    return value;
  };

  FG.setOfTab = function ({ tab, storage }, name, value) {
    for (const place of [tab, storage])
      try {
        place.setItem(name, value);
      } catch (error) {
        /* full: it is in memory */
      }
  };

  // An annotator's name without surrounding space. Throws an Error with the reason if it is no name.
  FG.checkName = function (text) {
    const name = FG.strip(text).replace(/\p{Z}+/gu, " ");
    if (!name) throw new Error(t("type a name"));
    if (FG.points(name).length > LONGEST_NAME) throw new Error(t("at most {n} characters", { n: LONGEST_NAME }));
    if (/\p{C}/u.test(name)) throw new Error(t("control characters are not allowed"));
    return name;
  };

  // Whether a state has work in it, rather than only the order in which outputs were shown.
  const hasWork = (state) => Boolean(state && state.doc && (state.submitted || state.undo.length));

  // Whether the work differs from what was submitted.
  const isChanged = (page, state) =>
    Boolean(state.submitted) &&
    !(
      FG.same(judgement(page, state.doc), judgement(page, state.submitted)) &&
      NOTES.every((key) => state.doc[key] === state.submitted[key])
    );

  // The part of a document that a feedback file has.
  const judgement = (page, doc) => {
    if (page === "rating") return doc.ratings;
    return page === "comparison" ? doc.preference : doc;
  };

  // The pages of the task.
  const pagesOf = (schema) => {
    const has = {
      annotation: schema.errors.length || schema.missing.length,
      comparison: schema.comparison,
      rating: FG.scales(schema).length,
    };
    return PAGES.filter((page) => has[page]);
  };

  class DiskStore {
    constructor(schema, page) {
      Object.assign(this, { schema, page, pages: [], items: [], served: false, warning: null }, FG.openStorage());
      this.warning = this.reason;
      this.summaries = new Map(); // by the key of an item: {submitted, changed}, so that not all states are parsed again
      this.seen = { name: null, text: null }; // the state that this tab shows, as stored
      this.opened = null; // the work on the item that is shown
      this.onOther = () => false; // (state, document): another tab changed that item; see shell.js
      this.onNews = () => {}; // another tab did something
      const inline = document.getElementById("items");
      this.inside = inline ? FG.readItems(schema, inline.textContent) : [];
      this.insideId = inline ? this.fileId(this.inside) : "";
      window.addEventListener("storage", (event) => this.changedElsewhere(event));
    }

    // ---- names of stored values --------------------------------------------------------------------------------
    name(what) {
      return `fgrlhf/${this.schema.task}/${what}`;
    }
    ownName(what) {
      return this.name(`of/${encodeURIComponent(this.annotator)}/${what}`);
    }
    fileName(what) {
      return this.ownName(`file/${this.file}/${what}`);
    }
    stateName(item, page) {
      return this.fileName(`${page || this.page}/${item.key}`);
    }
    // The opened file of pages with these items inside, or of pages without: "" for the items inside. Each tab has its
    // own; a new one starts with the file that was opened last.
    get openName() {
      return this.ownName(`open/${this.insideId}`);
    }

    // Identifies a file by its texts and its feedback.
    fileId(items) {
      const parts = items.map(({ key, row }) => [key, row.feedback, row.preference, ...(row[FG.RATINGS] ? [row[FG.RATINGS]] : [])]);
      return FG.sha256(JSON.stringify(parts)).slice(0, 16);
    }

    // ---- the annotator and the file ----------------------------------------------------------------------------
    get annotator() {
      return FG.ofTab(this, NAME);
    }

    get identity() {
      return "name";
    }

    identify(text) {
      FG.setOfTab(this, NAME, FG.checkName(text));
    }

    // Open the items of the last visit. Throws an Error with `needs` if the annotator is unknown. Returns a conflict
    // (see `open`), or null.
    begin() {
      if (!this.annotator) throw Object.assign(new Error("the annotator is unknown"), { needs: "name" });
      this.summaries.clear();
      this.items = this.inside;
      this.file = this.insideId;
      const stored = FG.ofTab(this, this.openName);
      if (stored === null && this.inside.length) this.stayInside();
      if (stored)
        try {
          const { file, rows } = JSON.parse(stored);
          this.items = FG.readItems(this.schema, JSON.stringify(rows));
          this.file = file;
          return null;
        } catch (error) {
          this.stayInside();
        }
      if (!this.items.length || this.storage.getItem(this.fileName("begun"))) return null;
      return this.open(this.items, this.insideId);
    }

    // Whether a file was picked on a page that has items inside.
    get isPicked() {
      return Boolean(this.inside.length && FG.ofTab(this, this.openName));
    }

    // Open the items that are inside the page again.
    goInside() {
      this.stayInside();
      return this.begin();
    }

    // Also when another tab opens a file later.
    stayInside() {
      FG.setOfTab(this, this.openName, "");
    }

    // Open the content of a file. Returns {notice, conflict}, each possibly null. Throws an Error with the reason.
    take(text) {
      const items = FG.readItems(this.schema, text);
      const conflict = this.open(items, this.fileId(items));
      return { notice: this.remember(), conflict };
    }

    remember() {
      const rows = this.items.map((item) => ({
        id: item.id,
        ...FG.format.feedbackRow(this.schema, item),
        ...FG.itemKeys(item.row),
      }));
      const text = JSON.stringify({ file: this.file, rows });
      this.keepOpen(this.storage, text);
      if (this.keepOpen(this.tab, text)) return null;
      return t(
        "The file is too large for this browser's storage: open it again after a reload. Your annotations are stored.",
      );
    }

    // Store the open file in one of the storages. Returns whether there was room.
    keepOpen(storage, text) {
      try {
        storage.setItem(this.openName, text);
        return true;
      } catch (error) {
        storage.removeItem(this.openName); // the file that was open before
        return false;
      }
    }

    // Make `items` the open file. If the annotator has other work on them, returns a conflict:
    // {count, useMine(), useFile()}. Until it is answered the file's feedback is shown.
    open(items, file) {
      this.items = items;
      this.file = this.storage.getItem(this.ownName(`copy/${file}`)) || file;
      this.summaries.clear();
      const isKnown = this.storage.getItem(this.fileName("begun")) !== null;
      const own = this.ownWork(items);
      const same = own.filter((work) => !work.differs),
        other = own.filter((work) => work.differs);
      if (!isKnown) this.copy(same);
      this.write(this.fileName("begun"), "1");
      if (!other.length) return null;
      return {
        count: new Set(other.map(({ item }) => item.key)).size,
        useMine: () => this.copy(other),
        useFile: () => {
          if (!other.some((work) => work.file === this.file)) return;
          this.startCopy(file);
          this.copy(same);
        },
      };
    }

    // A new namespace for a file that has one, whose work stays stored.
    startCopy(file) {
      const [, number] = this.file.split(".");
      this.file = `${file}.${Number(number || 1) + 1}`;
      this.write(this.ownName(`copy/${file}`), this.file);
      this.write(this.fileName("begun"), "1");
      this.summaries.clear();
      if (FG.ofTab(this, this.openName)) this.remember();
    }

    copy(works) {
      this.summaries.clear();
      for (const { page, item, text } of works) this.write(this.stateName(item, page), text);
    }

    // The annotator's latest work on each of the items, in any file: [{item, page, file, text, differs}]. Work in the open
    // file on items without feedback goes on as it is and is left out.
    ownWork(items) {
      const latest = new Map();
      const pattern = /^(?:of\/([^/]+)\/file\/([^/]+)\/)?(annotation|comparison|rating)\/([^/]+)$/;
      for (const name of this.storage.names()) {
        const match = name.startsWith(this.name("")) && pattern.exec(name.slice(this.name("").length));
        if (!match) continue;
        const [, person, file, page, key] = match;
        if (person !== undefined && person !== encodeURIComponent(this.annotator)) continue;
        const text = this.storage.getItem(name),
          state = parsed(text);
        if (!hasWork(state)) continue;
        const other = latest.get(`${page}/${key}`);
        const isNewer = !other || (state.saved || 0) > other.saved || file === this.file;
        const isOpen = other && other.file === this.file;
        if (isNewer && !isOpen) latest.set(`${page}/${key}`, { text, state, file, saved: state.saved || 0 });
      }
      const works = [];
      for (const item of items)
        for (const page of PAGES) {
          const work = latest.get(`${page}/${item.key}`);
          if (!work) continue;
          const doc = judgement(page, work.state.submitted || work.state.doc),
            given = item.row[JUDGEMENTS[page]];
          if (work.file === this.file && given === undefined) continue;
          works.push({ item, page, ...work, differs: !this.isGiven(item, page, doc) });
        }
      return works;
    }

    // Whether the file has this feedback on the item.
    isGiven(item, page, doc) {
      const row = { ...item.row, [JUDGEMENTS[page]]: doc };
      const text = (values) => JSON.stringify(FG.format.feedbackRow(this.schema, { ...item, row: values }));
      return text(row) === text(item.row);
    }

    // ---- states ------------------------------------------------------------------------------------------------
    write(name, value) {
      try {
        this.storage.setItem(name, value);
        return true;
      } catch (error) {
        this.warning = FULL;
        return false;
      }
    }

    read(item, page) {
      return parsed(this.storage.getItem(this.stateName(item, page)));
    }

    // The state of the item that this tab shows from now on.
    load(item) {
      const name = this.stateName(item),
        text = this.storage.getItem(name);
      this.seen = { name, text };
      return parsed(text);
    }

    // Store a state. One that another tab has stored meanwhile is joined with it first. Returns whether it is stored: it is
    // not if both tabs changed the same part.
    save(item, state) {
      const name = this.stateName(item);
      if (this.isStale(name) && !this.catchUp()) return false;
      this.summaries.delete(item.key);
      const text = JSON.stringify({ ...state, saved: FG.now() });
      this.write(name, text); // without room it is in memory, and the page says so
      this.seen = { name, text };
      return true;
    }

    // Whether another tab has changed the item and this tab did not show it until now: then it has to be seen first.
    isMissed(item) {
      if (!this.isStale(this.stateName(item))) return false;
      if (this.catchUp()) FG.say(t("Not stored: the item was changed in another tab. Look at it and try again."), "bad");
      return true;
    }

    // Whether another tab has changed the stored state since this one read or wrote it.
    isStale(name) {
      const text = this.storage.getItem(name);
      return text !== null && this.seen.name === name && this.seen.text !== text;
    }

    changedElsewhere({ key, newValue }) {
      if (key === null) this.summaries.clear();
      else this.summaries.delete(key.slice(key.lastIndexOf("/") + 1));
      if (newValue !== null && this.opened && key === this.seen.name && this.isStale(key)) this.catchUp();
      else this.onNews();
    }

    // Join what another tab has stored on the open item with the work here. Returns whether that was possible; if not, the
    // annotator is asked whose work stays.
    catchUp() {
      const { name, text } = this.seen,
        latest = this.storage.getItem(name);
      if (this.onOther(parsed(latest), (parsed(text) || {}).doc)) {
        this.seen.text = latest;
        return true;
      }
      const keep = () => {
        this.seen.text = this.storage.getItem(name);
        if (this.opened.save()) FG.notice("");
      };
      FG.askWhoseWork(() => this.reopen(), keep);
      return false;
    }

    get position() {
      return Number(this.storage.getItem(this.fileName(`${this.page}-position`))) || 0;
    }
    set position(i) {
      this.write(this.fileName(`${this.page}-position`), String(i));
    }

    // {submitted, changed, skipped}: whether the item was submitted on this page; whether there is work on it that is not
    // in the rows to download; why it was skipped, or null.
    summary(item) {
      const { key } = item;
      if (!this.summaries.has(key)) {
        const state = this.read(item);
        const submitted = Boolean(state && state.submitted);
        const skipped = (state && state.skipped) || null,
          changed = !skipped && (submitted ? isChanged(this.page, state) : this.differsFromFile(item, state));
        this.summaries.set(key, { submitted, changed, skipped });
      }
      return this.summaries.get(key);
    }

    // Whether a state has other feedback than the file, if the file has some.
    differsFromFile(item, state) {
      const isJudged = item.row[JUDGEMENTS[this.page]] !== undefined;
      return isJudged && hasWork(state) && !this.isGiven(item, this.page, judgement(this.page, state.doc));
    }

    // An item with its feedback: submitted on any page, or else from the file.
    judged(item) {
      const row = { ...item.row };
      for (const page of PAGES) {
        const state = this.read(item, page);
        if (state && state.submitted) {
          row[JUDGEMENTS[page]] = judgement(page, state.submitted);
          Object.assign(row, this.decided(row, page));
        }
        if (state && state.skipped) delete row[JUDGEMENTS[page]];
      }
      return { ...item, row };
    }

    // How the judgement of a page that was submitted here came about, as part of its row: see decisions.py. {} for
    // ordinary judgements of rows that do not say it.
    decided({ decided, ...row }, page) {
      const isDecision = FG.decidedBetween(row, page) !== null,
        isSaid = decided !== null && typeof decided === "object" && !Array.isArray(decided);
      if (this.schema.row.includes("decided") || !(isSaid || (isDecision && decided === undefined))) return {};
      return { decided: { ...decided, [page]: isDecision ? "adjudicated" : "single" } };
    }

    // Why the annotator skipped the item on this page: {reason, text, time}, or null.
    skippedOf(item) {
      return this.summary(item).skipped;
    }

    get skipped() {
      return this.items.filter((item) => this.skippedOf(item));
    }

    // Skip an item, or reopen it with null. Returns whether it is stored.
    skip(item, state, skip) {
      if (this.isMissed(item)) return false;
      if (skip) state.skipped = { ...skip, time: new Date(FG.now() * 1000).toISOString() };
      else delete state.skipped;
      return this.save(item, state);
    }

    isDone(item) {
      if (this.skippedOf(item)) return false;
      return item.row[JUDGEMENTS[this.page]] !== undefined || this.summary(item).submitted;
    }

    get done() {
      return this.items.filter((item) => this.isDone(item));
    }

    // The indices of the items that were changed after they were submitted.
    get changed() {
      return [...this.items.keys()].filter((i) => this.summary(this.items[i]).changed);
    }

    // For each other page of the task, the number of rows to download that it has not judged: [page, number].
    get lacking() {
      const rows = this.done.map((item) => this.judged(item).row);
      return pagesOf(this.schema)
        .filter((page) => page !== this.page)
        .map((page) => [page, rows.filter((row) => row[JUDGEMENTS[page]] === undefined).length]);
    }

    // The rows that are done on this page, as a feedback file.
    text() {
      return FG.pythonJson(
        this.done.map((item) => FG.format.feedbackRow(this.schema, this.judged(item))),
      );
    }

    // Data that the rows of a feedback file cannot hold, for each of its rows, and then the skipped items, which have no
    // row. Feedback that came with the file has none.
    record() {
      const rates = FG.scales(this.schema).length > 0;
      const entries = this.done.map((item) => {
        const states = {};
        for (const page of PAGES) {
          const state = this.read(item, page);
          states[page] = state && state.submitted ? state : null;
        }
        const { annotation, comparison, rating } = states;
        const each = (value) => ({
          annotation: annotation && value(annotation),
          comparison: comparison && value(comparison),
          ...(rates ? { rating: rating && value(rating) } : {}),
        });
        const tenths = (seconds) => Math.round((seconds || 0) * 10) / 10;
        return {
          id: item.id,
          annotator: annotation || comparison || rating ? this.annotator : null,
          order: comparison && comparison.order,
          ...(rates ? { "rating order": rating && rating.order } : {}),
          seconds: each((state) => tenths(state.seconds)),
          wall: each((state) => tenths(state.wall)),
          submitted: each((state) => state.time || null),
          revision: each((state) => state.revision || 1),
          guideline: each((state) => state.guideline || null),
          flag: each((state) => Boolean(state.submitted.flag)),
          ...(this.schema.comparison
            ? {
                "all-bad": comparison && Boolean(comparison.submitted["all-bad"]),
                seen: comparison && comparison.seen ? FG.roundedSeen(comparison.seen) : null,
              }
            : {}),
          suggestions: FG.decisionsRecord(item.row, annotation && annotation.submitted),
          ...decided(item.row, states),
          ...(this.schema.comment === "optional"
            ? { comment: each((state) => state.submitted.comment || null) }
            : {}),
        };
      });
      const skips = this.skipped.map((item) => ({
        id: item.id,
        annotator: this.annotator,
        page: this.page,
        skipped: this.skippedOf(item),
      }));
      return JSON.stringify([...entries, ...skips], null, 2);
    }

    submit(item, state) {
      if (this.isMissed(item)) return false;
      const isSame = state.guideline === this.schema.guideline_version && !isChanged(this.page, state);
      this.isUnchanged = Boolean(state.submitted && !state.skipped && isSame);
      if (this.isUnchanged) return true;
      state.submitted = FG.clone(state.doc);
      delete state.skipped;
      state.revision = (state.revision || 0) + 1;
      state.time = new Date(FG.now() * 1000).toISOString();
      state.guideline = this.schema.guideline_version;
      return this.save(item, state);
    }
  }

  // Of an adjudicator's entry in the record: the submissions that were decided between, by page.
  function decided(row, states) {
    const between = {};
    for (const page of PAGES) {
      const entries = states[page] && FG.decidedBetween(row, page);
      if (entries) between[page] = entries;
    }
    return Object.keys(between).length ? { role: "adjudicator", decided_between: between } : {};
  }

  function parsed(text) {
    try {
      return JSON.parse(text);
    } catch (error) {
      return null;
    }
  }

  FG.judgement = judgement;
  FG.newStore = (schema, page) => new DiskStore(schema, page);
})(window.FG);
