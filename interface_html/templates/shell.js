// Shared by both pages: the bar, navigation between items, help, colours, keys and the start.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = FG.$;

  // ---- the bar -----------------------------------------------------------------------------------------------
  const THEMES = ["auto", "light", "dark"];
  let shell = null;

  const RECORD = "The order in which texts were shown and the active time, for the agreement report";

  function button(id, label, onclick, key, title) {
    return FG.el(
      "button",
      { type: "button", id, onclick, "aria-keyshortcuts": key, title: title || key },
      label,
    );
  }

  function setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    $("theme").textContent = `Colours: ${theme}`;
    shell.store.write(shell.store.name("theme"), theme);
  }

  function buildBar() {
    const { schema, store, hooks } = shell;
    const picker = FG.el("input", {
      type: "file",
      id: "file",
      accept: ".json,application/json",
      class: "hidden",
      "aria-label": "Items file",
      onchange: pickFile,
      tabindex: "-1",
    });
    $("bar").replaceChildren(
      FG.el("h1", {}, `${schema.title}: ${shell.page}`),
      FG.el(
        "nav",
        { "aria-label": "Items" },
        button("previous", "‹ Previous", () => shell.open(shell.at - 1)),
        FG.el("span", { id: "position" }),
        button("next", "Next ›", () => shell.open(shell.at + 1)),
      ),
      FG.el(
        "div",
        { class: "tools", role: "group", "aria-label": "Tools" },
        button("undo", "Undo", () => hooks.step(true), "Control+Z"),
        button("redo", "Redo", () => hooks.step(false), "Control+Shift+Z"),
        store.served ? null : button("pick", "Open items…", () => picker.click()),
        store.served ? null : picker,
        store.served ? null : button("download", "Download feedback.json", downloadFeedback),
        store.served ? null : button("record", "record.json", downloadRecord, null, RECORD),
        button("help-button", "Help ?", showHelp, "?"),
        button("theme", "Colours", () =>
          setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % 3]),
        ),
      ),
    );
    setTheme(
      THEMES.includes(store.storage.getItem(store.name("theme")))
        ? store.storage.getItem(store.name("theme"))
        : "auto",
    );
  }

  async function pickFile(event) {
    const file = event.target.files[0];
    event.target.value = "";
    if (!file) return;
    try {
      FG.notice(shell.store.take(await file.text()));
    } catch (error) {
      FG.notice(`${file.name} was not opened: ${error.message}.`);
      return;
    }
    shell.open(0);
  }

  // Save `text` as a file. Returns false if no item is done.
  function download(name, text) {
    if (!shell.store.done.length) {
      FG.notice("There is nothing to download yet: submit at least one item.");
      return false;
    }
    const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    FG.el("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
    return true;
  }

  function downloadFeedback() {
    const store = shell.store,
      total = store.items.length,
      done = store.done.length;
    if (!download("feedback.json", store.text())) return;
    const rest = done < total ? `; the ${total - done} not submitted yet are left out` : "";
    FG.notice(`feedback.json has ${done} of ${total} items${rest}.`);
  }

  function downloadRecord() {
    if (download("record.json", shell.store.record()))
      FG.notice(
        "record.json has the order in which texts were shown and the active time, for the agreement report.",
      );
  }

  function showHelp() {
    const { schema, hooks } = shell;
    const table = (rows) =>
      FG.el(
        "table",
        {},
        FG.el(
          "tbody",
          {},
          rows.map(([keys, what]) =>
            FG.el(
              "tr",
              {},
              FG.el(
                "th",
                { scope: "row" },
                keys.split(" / ").map((key, i) => [i ? " / " : "", FG.el("kbd", {}, key)]),
              ),
              FG.el("td", {}, what),
            ),
          ),
        ),
      );
    $("help").replaceChildren(
      FG.el("h2", { id: "help-title" }, "Help"),
      ...schema.guideline.map((text) => FG.el("p", {}, text)),
      ...hooks.help(table),
      FG.el("p", {}, "Keys do not work while a text field has focus; Esc leaves the field."),
      FG.el("p", { class: "hint" }, `Guideline version ${schema.guideline_version}.`),
      FG.el("button", { type: "button", class: "main", onclick: () => $("help").close() }, "Close"),
    );
    $("help").showModal();
    $("help").scrollTop = 0;
  }

  function status(work) {
    if (work.state.submitted) return work.changed ? "changed since submitted" : "submitted";
    return shell.store.isDone(work.item) ? "from the file" : "not submitted";
  }

  FG.showStatus = function (work) {
    const { store, at } = shell,
      total = store.items.length;
    const done = store.items.filter((item) => store.isDone(item)).length;
    $("position").textContent = store.served
      ? `${store.progress} (this item: ${status(work)})`
      : `Item ${at + 1} of ${total} (${status(work)}), ${done} done`;
    $("previous").disabled = at <= 0;
    $("next").disabled = at >= total - 1;
    $("undo").disabled = !work.state.undo.length;
    $("redo").disabled = !work.state.redo.length;
    if (store.warning) FG.notice(store.warning);
  };

  // List the problems to fix before submitting; each entry goes to its place.
  FG.showProblems = function (problems) {
    const count = problems.length;
    if (!count) {
      $("problems").replaceChildren();
      return;
    }
    const entries = problems.map(({ text, go }) =>
      FG.el("li", {}, FG.el("button", { type: "button", class: "link", onclick: go }, text)),
    );
    $("problems").replaceChildren(
      FG.el("p", {}, `Not submitted: ${count === 1 ? "1 problem" : `${count} problems`} to fix.`),
      FG.el("ul", {}, entries),
    );
  };

  // After a submission: the next item that is not done, if there is one.
  FG.afterSubmit = async function () {
    const { store, at } = shell,
      n = store.items.length;
    if (store.served) {
      try {
        await store.advance();
      } catch (error) {
        FG.say(`Submitted. The next item could not be loaded: ${error.message}.`, "bad");
        return;
      }
      if (!store.items.length) {
        shell.work = null;
        showEmpty();
        return;
      }
      shell.open(0);
      FG.say("Submitted. This is the next item.", "good");
      return;
    }
    for (let k = 1; k < n; k++) {
      if (!store.isDone(store.items[(at + k) % n])) {
        shell.open((at + k) % n);
        FG.say(`Item ${at + 1} is submitted. This is item ${shell.at + 1}.`, "good");
        return;
      }
    }
    FG.say("Submitted. All items are done: download feedback.json.", "good");
    FG.notice("All items are done. Download feedback.json, and record.json if you were asked for it.");
    $("download").focus();
  };

  function showEmpty() {
    const { served, progress } = shell.store;
    $("empty").replaceChildren(
      ...(served
        ? [
            FG.el("h2", {}, "Nothing left to do"),
            FG.el("p", {}, `${progress}. Your submissions are stored. Reload the page to check for new items.`),
          ]
        : [
            FG.el("h2", {}, "No items yet"),
            FG.el(
              "p",
              {},
              "Open a file of items: feedback.json, or the output of fgrlhf feedback items.",
            ),
            FG.el(
              "button",
              { type: "button", class: "main", onclick: () => $("file").click() },
              "Open items…",
            ),
          ]),
    );
    $("empty").hidden = false;
    $("work").hidden = true;
    $("undo").disabled = $("redo").disabled = $("previous").disabled = $("next").disabled = true;
  }

  function onKey(event) {
    const field = event.target.closest("input:not([type=checkbox]):not([type=radio]), textarea, select");
    const command = event.ctrlKey || event.metaKey;
    if (shell.work) shell.work.tick();
    if ($("help").open || !shell.work) return;
    const z = event.key.toLowerCase() === "z",
      y = event.key.toLowerCase() === "y";
    if (command && event.key === "Enter") {
      event.preventDefault();
      shell.hooks.submit();
      return;
    }
    if (command && !event.altKey && (z || y)) {
      event.preventDefault();
      shell.hooks.step(z && !event.shiftKey);
      return;
    }
    if (command || event.altKey || event.isComposing) return;
    if (field) {
      shell.hooks.fieldKey && shell.hooks.fieldKey(event, field);
      return;
    }
    if (event.key === "?") {
      event.preventDefault();
      showHelp();
      return;
    }
    shell.hooks.key(event);
  }

  // Start a page. hooks: open(work) shows an item, step(back), submit(), key(event), fresh(item), help(table).
  FG.start = async function (page, hooks) {
    const schema = window.FG_SCHEMA;
    shell = { schema, page, hooks, at: 0, work: null, store: null };
    shell.open = (at) => {
      const { store } = shell;
      if (at < 0 || at >= store.items.length) return;
      shell.at = at;
      store.position = at;
      const item = store.items[at];
      shell.work = new FG.Work(store, item, hooks.fresh(item, schema));
      $("empty").hidden = true;
      $("work").hidden = false;
      FG.say("");
      FG.showProblems([]);
      hooks.open(shell.work);
      window.scrollTo(0, 0); // the submit button is at the end of the page
      FG.showStatus(shell.work);
    };
    document.title = `${schema.title}: ${page}`;
    try {
      shell.store = await FG.openStore(schema, page, shell);
    } catch (error) {
      FG.notice(`Items could not be read: ${error.message}.`);
      return;
    }
    buildBar();
    document.addEventListener("keydown", onKey);
    document.addEventListener("pointerdown", () => shell.work && shell.work.tick());
    if (shell.store.warning) FG.notice(shell.store.warning);
    if (shell.store.items.length) shell.open(Math.min(shell.store.position, shell.store.items.length - 1));
    else showEmpty();
  };
})(window.FG);
