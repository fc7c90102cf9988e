// The time and the work on one item.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const HISTORY = 200; // steps that can be undone
  const STATE_BYTES = 200 * 1024; // the server takes 256 KiB: a longer state loses its oldest steps
  const LONGEST_GAP = 30; // seconds without activity that still count as reading

  FG.now = () => Date.now() / 1000; // seconds; tests replace it

  // What was seen of each output, [{seconds, share}], as it is stored.
  FG.roundedSeen = (seen) =>
    seen.map(({ seconds, share }) => ({
      seconds: Math.round(seconds * 10) / 10,
      share: Math.min(Math.round(share * 100) / 100, 1),
    }));

  const bytes = (value) => new TextEncoder().encode(JSON.stringify(value)).length;

  // Measures active time, from what the annotator does, and wall time. Times are in seconds.
  FG.Stopwatch = class {
    constructor(now, isVisible) {
      this.last = isVisible ? now : null; // the last activity; null while the page is hidden
      this.lapStart = now;
    }

    // Activity at `now`. Returns the active time since the last activity: long gaps count as LONGEST_GAP.
    act(now) {
      const gap = this.last === null ? 0 : Math.max(now - this.last, 0);
      this.last = now;
      return Math.min(gap, LONGEST_GAP);
    }

    // The page was hidden: what follows is not active time until the next activity.
    pause() {
      this.last = null;
    }

    // The wall time since the last call.
    lap(now) {
      const seconds = Math.max(now - this.lapStart, 0);
      this.lapStart = now;
      return seconds;
    }
  };

  // Remove the oldest steps of a state until it has at most `limit` bytes.
  FG.capHistory = function (state, limit) {
    let size = bytes(state);
    while (size > limit && state.undo.length) size -= bytes(state.undo.shift());
  };

  // Leave out of the stored work on an item what the schema no longer has, so that it can be shown and submitted again.
  // Steps that could bring it back are forgotten.
  FG.fitSchema = function (schema, state) {
    const { comment, ...rest } = state.doc,
      doc = schema.comment === "optional" ? { ...state.doc } : rest,
      isOf = (kinds) => (mark) => kinds.some(({ name }) => name === mark["error type"]);
    if (doc.errors) {
      doc.errors = doc.errors.filter(isOf(schema.errors)).map((error) => fittingError(schema, error));
      doc["missing-info"] = doc["missing-info"].filter(isOf(schema.missing));
    }
    if (!FG.same(doc, state.doc)) Object.assign(state, { doc, undo: [], redo: [] });
  };

  function fittingError(schema, error) {
    const fitting = { ...error },
      asksReason = (FG.kind(schema, error["error type"]).reason || "none") !== "none";
    if (!FG.severities(schema).some(({ name }) => name === error.severity)) delete fitting.severity;
    if (!asksReason) delete fitting.reason;
    return fitting;
  }

  // The work on one item: document, undo and redo steps, times. `doc` is replaced, never changed in place.
  FG.Work = class {
    constructor(store, item, fresh) {
      this.empty = { doc: fresh, undo: [], redo: [], seconds: 0, wall: 0, submitted: null };
      this.store = store;
      this.item = item;
      this.state = { ...FG.clone(this.empty), ...store.load(item) };
      this.before = null;
      this.watch = new FG.Stopwatch(FG.now(), !document.hidden);
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
        now = FG.now();
      if (FG.same(after, state.doc)) return;
      const joins =
        key && this.last && this.last.key === key && now - this.last.time < 1.5 && state.undo.length;
      if (joins) state.undo.pop();
      else this.before = state.doc;
      state.undo.push(FG.patch(this.before, after));
      state.undo.splice(0, state.undo.length - HISTORY);
      state.redo = [];
      state.doc = after;
      FG.capHistory(state, STATE_BYTES);
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

    // Take over `theirs`, the state that another window has stored since both windows had the document `base`; null: nothing
    // was stored then, or is now. What was changed here meanwhile stays, as one step. Returns whether the document had to be
    // joined of both, or null if both changed the same part: then nothing is taken.
    follow(theirs, base) {
      const { state } = this,
        { order, seen = [] } = state,
        other = { ...FG.clone(this.empty), ...FG.clone(theirs) },
        doc = FG.joined(base || this.empty.doc, state.doc, other.doc);
      if (!doc) return null;
      const own = FG.patch(other.doc, doc);
      (other.seen || []).forEach(({ seconds, share }, i) => {
        if (seen[i])
          Object.assign(seen[i], { seconds: Math.max(seconds, seen[i].seconds), share: Math.max(share, seen[i].share) });
      });
      for (const key of Object.keys(state)) delete state[key];
      Object.assign(state, other, { doc }, order ? { order } : {}, seen.length ? { seen } : {});
      if (own.length) {
        state.undo.push(own);
        state.redo = [];
      }
      this.last = null;
      return own.length > 0;
    }

    // Something happened on the page: count the time until now.
    tick() {
      const now = FG.now();
      this.state.seconds += this.watch.act(now);
      this.state.wall += this.watch.lap(now);
    }

    // The page was hidden or shown again.
    setVisible(isVisible) {
      this.tick();
      if (!isVisible) this.watch.pause();
    }

    save() {
      return this.store.save(this.item, this.state);
    }

    // Whether the submission is stored.
    async submit() {
      this.last = null;
      this.tick();
      return this.store.submit(this.item, this.state);
    }
  };
})(window.FG);
