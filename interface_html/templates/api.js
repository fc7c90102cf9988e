// Served pages store work on the server, and keep a copy in this browser until the server has it. On pages opened from
// disk this script does nothing.
"use strict";
(function () {
  const FG = window.FG,
    { t } = FG;
  if (!/^https?:$/.test(location.protocol) || document.getElementById("items")) return;
  const COUNTDOWN = 300; // seconds before the end of a lease from which the rest is shown
  const DELAY = 500; // milliseconds without a change before a draft is sent
  // milliseconds for a response: meanwhile the page may take no input; tests give slow machines more
  const LONGEST_WAIT = FG.longestWait || 30000;
  const RETRY = 5000; // milliseconds until a draft is sent again

  const LATE = t(
    "Your time for this item ran out and others have it now. You can still submit it: it counts as an extra judgement.",
  );

  function newUuid() {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    bytes[6] = (bytes[6] & 15) | 64;
    bytes[8] = (bytes[8] & 63) | 128;
    const hex = Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
    return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
  }

  // A part of an address as text. One that is not percent-encoded, such as the name "50%", is taken as it stands.
  function decoded(part) {
    try {
      return decodeURIComponent(part);
    } catch (error) {
      return part;
    }
  }

  // Wait until something is done, but not longer than for a response.
  function atMost(promise) {
    const end = new Promise((resolve) => setTimeout(resolve, LONGEST_WAIT));
    return Promise.race([promise, end]);
  }

  // Whether a request may succeed later.
  const isPassing = ({ status }) => status === 0 || status >= 500;

  // The state that a draft stores. The server has the submission.
  function draftState({ submitted, ...state }, version) {
    return { ...state, version };
  }

  // The work in a state, without what changes while the annotator only reads.
  const workIn = ({ seconds, wall, seen, submitted, version, ...work }) => JSON.stringify(work);

  // Each state that is stored in this browser has a version: [session, number]. A session is the time for which an item is
  // open in a tab, and its numbers grow. Whether a draft is one of those that `latest` follows, which has the last number
  // of each session.
  function isEarlier({ state }, latest) {
    const [session, number] = state.version || [];
    return number <= latest[session];
  }

  // The state of a copy, if it is newer than what the server has of the item; null if not. It is newer if nobody has
  // submitted the item since, and the server's draft is the one that the copy was based on, or one that was sent from this
  // browser before it. It is also newer if the server has the submission that was sent from here, and no draft since.
  // Revisions of drafts start again after each submission.
  function newestState(copy, { draft, submissions, submitted }) {
    const { pending, ...state } = copy.state;
    if (!draft && isStored(pending, submissions, submitted)) {
      const { seconds = 0, wall = 0 } = pending; // the submission has these times: they add up
      return { ...state, seconds: state.seconds - seconds, wall: state.wall - wall };
    }
    const known = copy.submissions ?? submissions; // copies of an earlier version of this page have no number
    if (known !== submissions) return null;
    const isBasis = copy.revision === (draft ? draft.revision : 0),
      isAfter = Boolean(draft) && isEarlier(draft, copy.latest || {});
    return isBasis || isAfter ? copy.state : null;
  }

  // Whether the server's latest submission is one that was pending here: its response was lost.
  function isStored(pending, submissions, submitted) {
    if (!pending || submissions !== pending.submissions + 1) return false;
    return FG.same({ ...submitted, seen: null }, { ...pending.doc, seen: null });
  }

  class ServerStore {
    constructor(schema, page) {
      Object.assign(
        this,
        { schema, page, items: [], served: true, warning: null, position: 0, timer: null, unsent: null },
        FG.openStorage(),
      );
      this.identity = "name"; // what names the annotator to the server: "name" or "token"
      this.progress = "";
      this.pages = []; // those of the task that the server has
      this.latest = {}; // the last version of each session that the state follows
      this.settled = new Map(); // the texts of copies, by name, that the server refused or that are older than its work
      this.taken = null; // the state whose submission was found at the server after its answer was lost
      this.opened = null; // as in store.js, also the next two
      this.onOther = () => false;
      this.onNews = () => {};
      this.active = 0; // when the annotator last did something, as of FG.now
      this.takeLink(location.hash);
      if (location.hash) history.replaceState(null, "", location.pathname);
      this.listen();
    }

    name(what) {
      return `fgrlhf/served/${this.schema.task}/${what}`;
    }

    write(name, value) {
      try {
        this.storage.setItem(name, value);
        return true;
      } catch (error) {
        return false;
      }
    }

    // ---- the annotator -----------------------------------------------------------------------------------------
    // A link names the annotator. The name or token is stored for reloads. Returns whether there was one.
    takeLink(link) {
      const parts = [...link.matchAll(/[#&](token|annotator)=([^&]*)/g)];
      for (const [, key, value] of parts) FG.setOfTab(this, this.name(key), decoded(value));
      return parts.length > 0;
    }

    get annotator() {
      return this.who || FG.ofTab(this, this.name("annotator"));
    }

    // A name, or a token or link if the server needs one.
    identify(text, needs) {
      this.who = null;
      clearTimeout(this.timer);
      this.unsent = null; // of the annotator before: a copy of it is in the browser
      if (needs !== "token") {
        FG.setOfTab(this, this.name("annotator"), FG.checkName(text));
        this.isTyped = true;
        return;
      }
      const typed = FG.strip(text);
      if (this.takeLink(typed)) return;
      if (!/^[\w-]+$/.test(typed)) throw new Error(t("paste the whole link, or the part after token="));
      FG.setOfTab(this, this.name("token"), typed);
    }

    // Load the annotator's items, and the unfinished or the next one. Throws an Error with `needs` if the server does
    // not know who asks.
    begin() {
      return FG.whileWaiting(async () => {
        await this.flush();
        this.study = null;
        this.settled.clear();
        const answer = await this.call("GET", `/api/assignments?page=${this.page}`);
        this.items = answer.assignments.map(({ id, item, ...rest }) => ({ id: item, key: String(id), ...rest }));
        this.askWhetherKnown(answer);
        this.study = answer.study;
        this.pages = answer.pages;
        this.identity = answer.identity;
        const at = await this.advance();
        this.position = at < 0 ? this.items.length : at;
        this.sendCopiesLater();
        return null;
      });
    }

    // A name that was typed here for the first time, and that the study knows, may be another person's: throws an Error
    // that needs a confirmation. `annotator` is the name as it was first written.
    askWhetherKnown({ identity, annotator, known, submissions, study }) {
      const name = this.name(`confirmed/${study}/${encodeURIComponent(annotator)}`),
        isNew = this.isTyped && identity === "name" && known && this.storage.getItem(name) === null;
      this.confirm = () => this.write(name, "1");
      if (isNew) throw Object.assign(new Error(t("your name is not confirmed")), { needs: "confirmation", annotator, submissions });
      this.confirm();
    }

    // The JSON of the server's response. Throws an Error with `status` (0: no response) and the keys of the response.
    async call(method, path, body) {
      const token = FG.ofTab(this, this.name("token")),
        annotator = FG.ofTab(this, this.name("annotator"));
      const headers = { "Content-Type": "application/json" };
      if (this.study) headers["X-Study"] = this.study;
      if (token) headers.Authorization = `Bearer ${token}`;
      if (annotator) headers["X-Annotator"] = encodeURIComponent(annotator); // headers hold ASCII only
      const fail = (text, status, content) =>
        Object.assign(new Error(text), { problems: [], ...content, status });
      const stop = new AbortController(),
        timer = setTimeout(() => stop.abort(), LONGEST_WAIT);
      let response, content;
      try {
        response = await fetch(path, {
          method,
          headers,
          body: JSON.stringify(body),
          credentials: "omit",
          signal: stop.signal,
        });
        content = await response.json();
      } catch (error) {
        throw fail(t("the server cannot be reached; your work is stored in this browser, try again"), 0);
      } finally {
        clearTimeout(timer);
      }
      if (content.needs) this.identity = content.needs;
      if (!response.ok)
        throw fail(
          content.error
            ? FG.reason(content.error)
            : t("the server answered {status}", { status: response.status }),
          response.status,
          content,
        );
      return content;
    }

    // ---- items -------------------------------------------------------------------------------------------------
    // Load the unfinished item, or the next one. Returns its index, or -1 if there is none.
    advance() {
      return FG.whileWaiting(() => this.loadNext());
    }

    async loadNext() {
      await this.flush();
      const answer = await this.call("POST", "/api/next", { page: this.page });
      this.progress = t("{name}: {done} of {total} done", {
        name: answer.annotator,
        done: answer.done,
        total: answer.total,
      });
      this.who = answer.annotator;
      this.tell({ progress: this.progress });
      this.guideline = answer.guideline;
      return answer.assignment ? this.show(answer.assignment) : -1;
    }

    // Load the item at an index, unless it is loaded.
    fetch(at) {
      return FG.whileWaiting(() => this.loadItem(at));
    }

    async loadItem(at) {
      const { key } = this.items[at];
      if (Number(key) === this.assignment && this.isFresh) {
        this.isFresh = false;
        return;
      }
      await this.flush();
      const answer = await this.call("GET", `/api/assignments/${key}`);
      this.show(answer.assignment);
      this.isFresh = false;
      if (this.leaseEnd !== null) this.renew(); // opening an item is activity
    }

    // Make an assignment of the server the open item. Returns its index.
    show({ id, item, order, draft, submissions, submitted, skipped, lease_seconds: lease }) {
      const { id: name, ...row } = item,
        key = String(id);
      this.assignment = id;
      this.opened = null;
      this.isFresh = true;
      clearTimeout(this.timer);
      this.unsent = null; // of the item before: a copy of it is in the browser
      this.session = newUuid();
      this.latest = { [this.session]: 0 };
      this.revision = draft ? draft.revision : 0;
      this.submissions = submissions;
      this.stored = { draft, submissions, submitted };
      this.draft = this.stateOf(draft, submitted);
      this.seenDoc = this.draft && this.draft.doc; // what the server has, as far as this window knows
      this.keepLease(lease, submissions === 0 && !skipped);
      this.sendCopiesLater();
      const shown = { id: name, key, row, order, skipped, done: submissions > 0 && !skipped },
        at = this.items.findIndex((other) => other.key === key);
      if (at < 0) return this.items.push(shown) - 1;
      this.items[at] = shown;
      return at;
    }

    // The state of a page from its draft and the latest submission; null without either.
    stateOf(draft, submitted) {
      const state = draft ? { ...draft.state } : {};
      state.submitted = submitted && this.pageDoc(submitted);
      if (submitted && !state.doc) state.doc = state.submitted;
      return draft || submitted ? state : null;
    }

    // The document of the page for a submitted one.
    pageDoc(doc) {
      if (this.page === "comparison")
        return {
          preference: doc.preference,
          ranks: this.schema.fields.outputs.map(() => null),
          mode: "pairs",
          ...FG.keptAllBad(doc),
          ...FG.keptNotes(doc),
        };
      if (this.page === "rating") return { ratings: doc.ratings, ...FG.keptNotes(doc) };
      const errors = doc.errors.map(({ quote, ...error }) => error);
      return { ...doc, errors };
    }

    // Tell the server regularly that the annotator is at work, so that the item stays theirs. `isOpen`: whether the item
    // is not done, so that the end of the lease matters.
    keepLease(seconds, isOpen) {
      clearInterval(this.beat);
      clearInterval(this.countdown);
      this.lease = seconds;
      this.leaseEnd = isOpen ? FG.now() + seconds : null;
      this.showLease();
      this.countdown = setInterval(() => this.showLease(), 1000);
      const period = Math.min(60, seconds / 4);
      this.beat = setInterval(() => {
        if (FG.now() - this.active < period) this.renew();
      }, period * 1000);
    }

    // The lease was renewed, or has no end that matters: the item is done or skipped.
    setLease(isOpen) {
      this.leaseEnd = isOpen ? FG.now() + this.lease : null;
      this.showLease();
    }

    // Count down the end of the lease, and announce it once. Activity renews it.
    showLease() {
      const now = FG.now(),
        left = this.leaseEnd === null ? Infinity : Math.max(Math.round(this.leaseEnd - now), 0),
        isEnding = left <= Math.min(COUNTDOWN, this.lease / 2),
        time = `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`;
      FG.$("lease").textContent = isEnding ? t("{time} left for this item", { time }) : "";
      const wasEnding = !FG.$("lease").hidden;
      FG.$("lease").hidden = !isEnding;
      if (isEnding !== wasEnding)
        FG.$("lease-said").textContent = isEnding
          ? t("{time} left for this item. Then others can get it, unless you go on.", { time })
          : "";
      if (isEnding && this.active >= this.looked) this.renew(); // something was done since the last look
      this.looked = now;
    }

    async renew() {
      const { assignment } = this;
      let answer;
      try {
        answer = await this.call("POST", `/api/assignments/${assignment}/active`, {});
      } catch (error) {
        return; // the next draft says so
      }
      if (assignment !== this.assignment) return;
      if (this.leaseEnd !== null) this.heard(answer.held);
      if (answer.revision !== this.revision || answer.submissions !== this.submissions) this.look();
    }

    // The server says whether the annotator still holds the open item.
    heard(isHeld) {
      this.setLease(isHeld);
      if (!isHeld) FG.notice(LATE);
    }

    // ---- drafts ------------------------------------------------------------------------------------------------
    // The name of this browser's copy of the draft. Another study at this address has assignments of the same numbers.
    get backup() {
      return this.name(`${this.page}/${this.assignment}/${this.study}`);
    }

    backUp(state) {
      this.latest[this.session] += 1;
      const { revision, submissions, session, latest } = this;
      this.write(this.backup, JSON.stringify({ revision, submissions, state, session, latest }));
    }

    // The draft, or the copy in this browser if it is newer.
    load() {
      const copy = this.copyNamed(this.backup),
        newest = copy && newestState(copy, this.stored);
      if (!newest) return this.draft;
      Object.assign(this.latest, copy.latest);
      const state = { ...newest, submitted: this.draft && this.draft.submitted };
      this.later(state);
      return state;
    }

    copyNamed(name) {
      try {
        return JSON.parse(this.storage.getItem(name));
      } catch (error) {
        return null;
      }
    }

    save(item, state) {
      this.backUp(state);
      this.later(state);
      return true;
    }

    later(state, delay = DELAY) {
      clearTimeout(this.timer);
      this.unsent = state;
      this.timer = setTimeout(() => this.send(state), delay);
    }

    // Send what is waiting, before another item is opened. Without a response, its copy in this browser is sent later.
    flush() {
      return FG.whileWaiting(() => atMost(this.sendUnsent()));
    }

    async sendUnsent() {
      clearTimeout(this.timer);
      if (this.sending) {
        await this.sending;
        if (this.warning) return; // the server does not answer now
      }
      clearTimeout(this.timer);
      if (this.unsent) await this.send(this.unsent);
    }

    // Send one draft at a time, so that revisions follow each other.
    async send(state) {
      if (this.sending) {
        this.later(state);
        return;
      }
      this.unsent = null;
      this.sending = this.put(state).finally(() => {
        this.sending = null;
      });
      await this.sending;
    }

    async put(state) {
      const { assignment, submissions, session } = this,
        // Another session has revisions of its own, and a submission ends the drafts before it.
        isOpen = () => session === this.session && submissions === this.submissions;
      this.backUp(state);
      const work = workIn(state),
        { doc } = state,
        body = { revision: this.revision, submissions, state: draftState(state, [session, this.latest[session]]) };
      try {
        const answer = await this.call("PUT", `/api/drafts/${assignment}`, body);
        if (!isOpen()) return;
        this.revision = answer.revision;
        this.seenDoc = doc;
        this.withdrawWarning();
        this.tellOpened();
        if (this.leaseEnd !== null) this.heard(answer.held);
        const latest = this.unsent || state;
        if (workIn(latest) === work) this.storage.removeItem(this.backup);
        else this.backUp(latest);
      } catch (error) {
        if (!isOpen()) return;
        if (error.status === 409 && (await this.isOwn(isOpen))) {
          if (!this.unsent) this.later(state);
          return;
        }
        const isJoined = error.status === 409 ? await this.catchUp().catch(() => null) : null;
        if (isJoined || !isOpen()) return;
        if (isJoined === false) {
          this.askWhoseWork();
          return;
        }
        this.warning = t("The server does not have the draft yet: {reason}.", { reason: error.message });
        FG.notice(this.warning);
        if (isPassing(error) && !this.unsent) this.later(state, RETRY);
      }
    }

    // Another window has changed the same part of the item: ask whose work stays.
    askWhoseWork() {
      const { opened } = this;
      const keep = async () => {
        try {
          const { draft, submissions, submitted } = (await this.call("GET", `/api/assignments/${this.assignment}`)).assignment;
          if (opened !== this.opened) return;
          Object.assign(this, { submissions, revision: draft ? draft.revision : 0 });
          opened.state.submitted = submitted && this.pageDoc(submitted);
        } catch (error) {
          // sending says so
        }
        if (opened === this.opened) await this.send(opened.state);
      };
      this.warning = FG.askWhoseWork(() => location.reload(), keep);
    }

    withdrawWarning() {
      if (this.warning) FG.notice("");
      this.warning = null;
    }

    // Whether the newer draft at the server was sent from here, and only the response was lost. Then this one follows it.
    async isOwn(isOpen) {
      try {
        const { draft } = (await this.call("GET", `/api/assignments/${this.assignment}`)).assignment;
        const isOwn = Boolean(draft) && isOpen() && isEarlier(draft, this.latest);
        if (isOwn) this.revision = draft.revision;
        return isOwn;
      } catch (error) {
        return false;
      }
    }

    // ---- other windows -----------------------------------------------------------------------------------------
    // The windows of this browser tell each other what they have stored. On other computers a window finds out when the
    // annotator comes back to it, or is at work in it.
    listen() {
      const look = () => document.hidden || this.look();
      window.addEventListener("focus", look);
      document.addEventListener("visibilitychange", look);
      if (typeof BroadcastChannel !== "function") return;
      this.channel = new BroadcastChannel(this.name(this.page));
      this.channel.addEventListener("message", ({ data }) => this.told(data));
    }

    // Tell the other windows in which this annotator works on this page: {progress}, or {id, key, done, skipped} of an item.
    tell(news) {
      const { channel, study, annotator } = this;
      if (channel) channel.postMessage({ study, annotator, ...news });
    }

    tellOpened() {
      if (!this.opened) return;
      const { id, key, done, skipped } = this.opened.item;
      this.tell({ id, key, done, skipped });
    }

    told({ study, annotator, progress, ...news }) {
      if (study !== this.study || annotator !== this.annotator) return;
      if (progress) this.progress = progress;
      if (news.key) {
        const item = this.items.find(({ key }) => key === news.key);
        if (!item) this.items.push(news);
        else if (Number(news.key) === this.assignment) this.look();
        else Object.assign(item, news);
      }
      this.onNews();
    }

    // Look whether another window has stored work on the open item.
    async look() {
      if (this.isLooking) return;
      this.isLooking = true;
      while (this.sending) await this.sending;
      this.isLooking = false;
      if (!this.opened || FG.isWaiting()) return;
      this.sending = this.catchUp()
        .then((isJoined) => isJoined || this.askWhoseWork())
        .catch(() => {}) // without a response the next draft says so
        .finally(() => {
          this.sending = null;
        });
      await this.sending;
    }

    // Join what another window has stored on the open item with the work here. Returns whether that was possible.
    async catchUp() {
      const { session, opened } = this,
        answer = (await this.call("GET", `/api/assignments/${this.assignment}`)).assignment;
      if (session !== this.session || !this.opened || opened !== this.opened) return true;
      const { draft, submissions, submitted, skipped } = answer,
        { item, state } = opened,
        revision = draft ? draft.revision : 0,
        isNew = submissions !== this.submissions;
      if (!isNew && revision === this.revision && FG.same(skipped, item.skipped)) return true;
      const theirs = this.stateOf(draft, submitted),
        isOwn = isNew && !draft && isStored(state.pending, submissions, submitted), // only the answer was lost
        done = submissions > 0 && !skipped,
        [other, number] = (draft && draft.state.version) || [];
      Object.assign(item, { skipped, done });
      this.withdrawWarning();
      if (isOwn) this.takeSubmitted(state, theirs.submitted);
      else if (!this.onOther(theirs, this.seenDoc)) return false;
      Object.assign(this, { revision, submissions, seenDoc: theirs && theirs.doc });
      if (other) this.latest[other] = Math.max(number, this.latest[other] || 0);
      if (done || skipped) this.setLease(false);
      clearTimeout(this.timer);
      this.unsent = null;
      if (FG.same(state.doc, theirs ? theirs.doc : opened.empty.doc)) this.storage.removeItem(this.backup);
      else this.save(item, state);
      return true;
    }

    // The submission that is pending in a state was stored: its times are not those of the next one.
    takeSubmitted(state, submitted) {
      const { seconds = 0, wall = 0 } = state.pending;
      Object.assign(state, { submitted, seconds: state.seconds - seconds, wall: state.wall - wall });
      delete state.pending;
      this.taken = state;
      if (FG.same(state.doc, submitted)) FG.say(t("Submitted."), "good");
      this.onNews();
    }

    // ---- copies of other items ---------------------------------------------------------------------------------
    // A draft that could not be sent stays in this browser when another item is opened or the page is closed. It is sent
    // once the server answers again. The server refuses the copies of other annotators of this browser, which stay.

    // The names of the copies of other items, with their assignments.
    get copies() {
      const start = this.name(`${this.page}/`),
        end = `/${this.study}`,
        copies = [];
      for (const name of this.storage.names()) {
        const assignment = name.slice(start.length, -end.length),
          isCopy = name === `${start}${assignment}${end}` && /^[0-9]+$/.test(assignment);
        if (isCopy && name !== this.backup) copies.push({ name, assignment });
      }
      return copies;
    }

    sendCopiesLater(delay = DELAY) {
      clearTimeout(this.copyTimer);
      this.copyTimer = setTimeout(() => this.sendCopies(), delay);
    }

    // Send the next copy that is not settled, and the others after it.
    async sendCopies() {
      if (this.sending || FG.isWaiting()) {
        this.sendCopiesLater();
        return;
      }
      const next = this.copies.find(({ name }) => this.settled.get(name) !== this.storage.getItem(name));
      if (!next) return;
      let isAnswered = false;
      this.sending = this.sendCopy(next)
        .then((answered) => {
          isAnswered = answered;
        })
        .finally(() => {
          this.sending = null;
        });
      await this.sending;
      this.sendCopiesLater(isAnswered ? 0 : RETRY);
    }

    // Send a copy, if it is newer than what the server has. Returns whether the server has answered.
    async sendCopy({ name, assignment }) {
      const text = this.storage.getItem(name),
        copy = this.copyNamed(name);
      try {
        const stored = (await this.call("GET", `/api/assignments/${assignment}`)).assignment,
          state = copy && newestState(copy, stored);
        if (!state) {
          this.settled.set(name, text);
          return true;
        }
        const { draft, submissions } = stored,
          version = copy.latest && [copy.session, copy.latest[copy.session]];
        await this.call("PUT", `/api/drafts/${assignment}`, {
          revision: draft ? draft.revision : 0,
          submissions,
          state: draftState(state, version),
        });
        if (this.storage.getItem(name) === text) this.storage.removeItem(name);
        if (!this.unsent && this.storage.getItem(this.backup) === null) this.withdrawWarning();
      } catch (error) {
        if (isPassing(error)) return false;
        this.settled.set(name, text);
      }
      return true;
    }

    // ---- submissions -------------------------------------------------------------------------------------------
    isDone(item) {
      return Boolean(item.done);
    }

    // Why the annotator skipped the item: {reason, text}, or null.
    skippedOf(item) {
      return item.skipped || null;
    }

    // Skip an item, or reopen it with null. Whether the server has stored it.
    skip(item, state, skip) {
      return FG.whileWaiting(() => this.setSkip(item, skip));
    }

    async setSkip(item, skip) {
      await this.flush();
      const path = `/api/assignments/${item.key}`;
      let isHeld = true;
      try {
        if (skip) await this.call("POST", `${path}/skip`, { ...skip, submissions: this.submissions });
        else ({ held: isHeld } = await this.call("POST", `${path}/reopen`, {}));
      } catch (error) {
        const reason = error.message;
        FG.say(
          skip ? t("Not skipped: {reason}.", { reason }) : t("Not reopened: {reason}.", { reason }),
          "bad",
        );
        return false;
      }
      item.skipped = skip;
      item.done = !skip && this.submissions > 0;
      if (!skip && !item.done) this.heard(isHeld);
      else this.setLease(false);
      this.tellOpened();
      return true;
    }

    // The judged text, and the document to submit: an annotation with the text of each error, or a comparison.
    content(item, state) {
      if (this.page !== "annotation") {
        const outputs = this.schema.fields.outputs.map((key) => item.row[key]);
        const { preference, ratings } = state.doc;
        const seen = state.seen ? { seen: FG.roundedSeen(state.seen) } : {};
        const judged =
          this.page === "rating" ? { ratings } : { preference, ...FG.keptAllBad(state.doc), ...seen };
        return [outputs.join("\0"), { ...judged, order: state.order, ...FG.keptNotes(state.doc) }];
      }
      const sides = FG.outputSides(this.schema),
        text = sides.map((side) => item.row[FG.sideKey(this.schema, side)]).join("\0"),
        pointsOf = (side) => FG.points(item.row[FG.sideKey(this.schema, side)]);
      const errors = state.doc.errors.map((error) => ({
        ...error,
        quote: FG.cut(pointsOf(FG.sideOf(error)), error.start, error.end),
      }));
      return [text, { ...state.doc, errors }];
    }

    // Returns whether it is stored. `isConfirmed`: replace submissions that this page does not know.
    submit(item, state, isConfirmed = false) {
      return FG.whileWaiting(() => this.post(item, state, isConfirmed));
    }

    async post(item, state, isConfirmed) {
      // The page said that it could not be submitted, and found out since that it was.
      this.isUnchanged = false;
      const isNews = isConfirmed || item.skipped || !FG.same(state.doc, state.submitted);
      if (this.taken === state && !isNews) return true;
      const [text, doc] = this.content(item, state),
        submitted = FG.clone(state.doc),
        { submissions } = this;
      // A repeated request has the same uuid, so the server does not store a submission twice if a response was lost.
      const { pending } = state;
      // What was seen grows meanwhile, and does not make another submission.
      const isSame = (other) => FG.same({ ...other, seen: null }, { ...doc, seen: null });
      if (!pending || pending.submissions !== submissions || !isSame(pending.doc))
        state.pending = { uuid: newUuid(), submissions, doc, seconds: state.seconds, wall: state.wall };
      this.save(item, state);
      clearTimeout(this.timer);
      this.unsent = null;
      if (this.sending) await atMost(this.sending);
      let answer;
      const tenths = (seconds) => Math.round(seconds * 10) / 10;
      try {
        answer = await this.call("POST", "/api/submissions", {
          uuid: state.pending.uuid,
          assignment: this.assignment,
          text_sha256: FG.sha256(text),
          seconds: tenths(state.seconds),
          wall: tenths(state.wall),
          guideline: this.guideline,
          submissions,
          confirmed: isConfirmed,
          doc: state.pending.doc,
        });
      } catch (error) {
        this.refused(item, state, error);
        if (isPassing(error)) this.later(state, RETRY); // the server shall have it as a draft at least
        return false;
      }
      clearTimeout(this.timer);
      this.unsent = null;
      this.submissions = answer.submissions; // others may have come between, and were replaced
      this.setLease(false);
      this.isUnchanged = Boolean(answer.unchanged);
      this.revision = answer.revision || 0; // a stored submission has ended the draft
      Object.assign(state, { submitted, seconds: 0, wall: 0 }); // the submission has these times: they add up
      item.done = true;
      item.skipped = null;
      delete state.pending;
      this.seenDoc = submitted;
      this.storage.removeItem(this.backup);
      this.tellOpened();
      return true;
    }

    refused(item, state, error) {
      FG.say(t("Not submitted: {reason}.", { reason: error.message }), "bad");
      const problems = error.problems.map(({ field, reason }) => ({
        text: `${field}: ${FG.reason(reason)}`,
        go: () => {},
      }));
      if (error.submissions !== undefined)
        problems.push({
          text: t("Replace the stored submission with the version shown here"),
          go: async () => {
            if (await this.submit(item, state, true)) FG.afterSubmit();
          },
        });
      FG.showProblems(problems);
    }
  }

  FG.newStore = (schema, page) => new ServerStore(schema, page);
})();
