// Served pages store work on the server, and keep a copy in this browser until the server has it. On pages opened from
// disk this script does nothing.
"use strict";
(function () {
  const FG = window.FG;
  if (!/^https?:$/.test(location.protocol) || document.getElementById("items")) return;
  const DELAY = 500; // milliseconds without a change before a draft is sent

  function newUuid() {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    bytes[6] = (bytes[6] & 15) | 64;
    bytes[8] = (bytes[8] & 63) | 128;
    const hex = Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
    return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
  }

  class ServerStore {
    constructor(schema, page) {
      Object.assign(
        this,
        { schema, page, items: [], served: true, warning: null, position: 0, timer: null },
        FG.openStorage(),
      );
      // The link names the annotator. Store the name or token for reloads, and remove it from the address.
      for (const [, key, value] of location.hash.matchAll(/(token|annotator)=([^&]*)/g))
        this.write(this.name(key), decodeURIComponent(value));
      if (location.hash) history.replaceState(null, "", location.pathname);
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

    // The JSON of the server's response. Throws an Error with `status` and `problems`; status 0: no response.
    async call(method, path, body) {
      const token = this.storage.getItem(this.name("token")),
        annotator = this.storage.getItem(this.name("annotator"));
      const headers = { "Content-Type": "application/json" };
      if (token) headers.Authorization = `Bearer ${token}`;
      if (annotator) headers["X-Annotator"] = encodeURIComponent(annotator); // headers hold ASCII only
      const fail = (text, status, problems) =>
        Object.assign(new Error(text), { status, problems: problems || [] });
      let response, content;
      try {
        response = await fetch(path, { method, headers, body: JSON.stringify(body), credentials: "omit" });
        content = await response.json();
      } catch (error) {
        throw fail("the server cannot be reached; your work is stored in this browser, try again", 0);
      }
      if (!response.ok)
        throw fail(
          content.error || `the server answered ${response.status}`,
          response.status,
          content.problems,
        );
      return content;
    }

    // Load the unfinished item, or the next one. False: there is none.
    async advance() {
      const answer = await this.call("POST", "/api/next", { page: this.page });
      this.progress = `${answer.annotator}: ${answer.done} of ${answer.total} done`;
      this.guideline = answer.guideline;
      this.items = [];
      if (!answer.assignment) return false;
      const { id, item, order, draft } = answer.assignment,
        { id: name, ...row } = item;
      this.assignment = id;
      this.revision = draft ? draft.revision : 0;
      this.draft = draft ? draft.state : null;
      this.items = [{ id: name, key: String(id), row, order }];
      return true;
    }

    backup() {
      return this.name(`${this.page}/${this.assignment}`);
    }

    // The draft. Work that a reload kept from being sent is newer than the server's draft.
    read() {
      let unsent = null;
      try {
        unsent = JSON.parse(this.storage.getItem(this.backup()));
      } catch (error) {
        /* none */
      }
      if (!unsent || unsent.revision !== this.revision) return this.draft;
      this.later(unsent.state);
      return unsent.state;
    }

    save(item, state) {
      this.write(this.backup(), JSON.stringify({ revision: this.revision, state }));
      this.later(state);
      return true;
    }

    later(state) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.send(state), DELAY);
    }

    // Send one draft at a time, so that revisions follow each other.
    async send(state) {
      if (this.sending) {
        this.later(state);
        return;
      }
      const { assignment } = this,
        text = JSON.stringify(state);
      this.sending = this.call("PUT", `/api/drafts/${assignment}`, { revision: this.revision, state })
        .then(
          (answer) => {
            if (assignment !== this.assignment) return;
            this.revision = answer.revision;
            if (JSON.stringify(state) === text) this.storage.removeItem(this.backup());
            else this.write(this.backup(), JSON.stringify({ revision: this.revision, state }));
            this.warning = null;
            FG.notice("");
          },
          (error) => {
            this.warning = `The server does not have the draft yet: ${error.message}.`;
            FG.notice(this.warning);
            if (error.status === 0 || error.status >= 500)
              setTimeout(() => assignment === this.assignment && this.later(state), 5000);
          },
        )
        .finally(() => {
          this.sending = null;
        });
      await this.sending;
    }

    isDone() {
      return false;
    }

    // The judged text, and the document to submit: an annotation with the text of each error, or a comparison.
    content(item, state) {
      if (this.page === "comparison") {
        const outputs = this.schema.fields.outputs.map((key) => item.row[key]);
        return [outputs.join("\0"), { preference: state.doc.preference, order: state.order }];
      }
      const text = item.row[FG.textKey(this.schema)],
        points = FG.points(text);
      const errors = state.doc.errors.map((error) => ({
        ...error,
        quote: FG.cut(points, error.start, error.end),
      }));
      return [text, { ...state.doc, errors }];
    }

    async submit(item, state) {
      const [text, doc] = this.content(item, state);
      // A repeated request has the same uuid, so the server does not store a submission twice if a response was lost.
      if (!state.pending || !FG.same(state.pending.doc, doc)) state.pending = { uuid: newUuid(), doc };
      this.save(item, state);
      clearTimeout(this.timer);
      if (this.sending) await this.sending;
      try {
        await this.call("POST", "/api/submissions", {
          uuid: state.pending.uuid,
          assignment: this.assignment,
          text_sha256: FG.sha256(text),
          seconds: Math.round(state.seconds * 10) / 10,
          guideline: this.guideline,
          doc,
        });
      } catch (error) {
        FG.say(`Not submitted: ${error.message}.`, "bad");
        FG.showProblems(
          error.problems.map(({ field, reason }) => ({ text: `${field}: ${reason}`, go: () => {} })),
        );
        return false;
      }
      this.storage.removeItem(this.backup());
      return true;
    }
  }

  FG.openStore = async function (schema, page) {
    const store = new ServerStore(schema, page);
    await store.advance();
    return store;
  };
})();
