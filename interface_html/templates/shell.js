// Shared by all pages: the bar, navigation between items, help, colours, keys and the start.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = FG.$;

  // ---- the bar -----------------------------------------------------------------------------------------------
  const THEMES = ["auto", "light", "dark"];
  let shell = null;

  const RECORD = "The annotator, the order in which texts were shown and the times, for the agreement report";

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

  // Hide or show the texts to judge by, also after a reload.
  FG.hideSources = function (isHidden) {
    const { schema, store } = shell;
    FG.placeSources(FG.hasSources(schema) && !isHidden);
    if (!FG.hasSources(schema)) return;
    store.write(store.name("sources"), isHidden ? "hidden" : "shown");
    $("hide-sources").textContent = isHidden ? "Show texts" : "Hide texts";
    $("hide-sources").setAttribute("aria-expanded", String(!isHidden));
    $("hide-sources").setAttribute("aria-controls", "sources");
  };

  function toggleSources() {
    if (FG.hasSources(shell.schema)) FG.hideSources(!$("sources").hidden);
  }

  function buildBar() {
    const { schema, store, hooks } = shell;
    const picker = FG.el("input", {
      type: "file",
      id: "file",
      accept: ".json,.jsonl,.html,.htm,application/json",
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
        button("previous", "‹ Previous", goPrevious, "["),
        FG.el("span", { id: "position" }),
        store.served ? FG.el("span", { id: "lease", hidden: true }) : null,
        store.served ? FG.el("span", { id: "lease-said", class: "hidden", role: "status" }) : null,
        button("next", "Next ›", goNext, "]"),
        button("next-open", "Next not done", goOpen, "}"),
        FG.el("input", {
          type: "text",
          id: "goto",
          inputmode: "numeric",
          size: 4,
          "aria-label": "Go to item",
          "aria-keyshortcuts": "G",
          placeholder: "Go to",
          title: "G",
          onkeydown: goToTyped,
        }),
      ),
      FG.el(
        "div",
        { class: "tools", role: "group", "aria-label": "Tools" },
        button("undo", "Undo", () => hooks.step(true), "Control+Z"),
        button("redo", "Redo", () => hooks.step(false), "Control+Shift+Z"),
        FG.skipReasons(schema).length ? button("skip", "Skip…", askSkip, "S") : null,
        store.served ? null : button("pick", "Open items…", () => picker.click()),
        store.served ? null : picker,
        store.served ? null : button("download", "Download feedback.json", downloadFeedback),
        store.served ? null : button("record", "record.json", downloadRecord, null, RECORD),
        button("who", "Annotator", changeAnnotator, null, "Change the annotator"),
        FG.hasSources(schema) ? button("hide-sources", "Hide texts", toggleSources, "Shift+P") : null,
        button("help-button", "Help ?", showHelp, "?"),
        button("theme", "Colours", () =>
          setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % 3]),
        ),
      ),
    );
    FG.hideSources(store.storage.getItem(store.name("sources")) === "hidden");
    setTheme(
      THEMES.includes(store.storage.getItem(store.name("theme")))
        ? store.storage.getItem(store.name("theme"))
        : "auto",
    );
  }

  // ---- files -------------------------------------------------------------------------------------------------
  function pickFile(event) {
    const file = event.target.files[0];
    event.target.value = "";
    return openFile(file);
  }

  async function openFile(file) {
    const { store } = shell;
    if (!file) return;
    if (!store.annotator) {
      FG.notice("Type your name first, then open the file.");
      return;
    }
    let opened;
    try {
      opened = store.take(await file.text());
    } catch (error) {
      FG.notice(`${file.name} was not opened: ${error.message}.`);
      return;
    }
    FG.notice(opened.notice);
    showItems(opened.conflict, 0);
  }

  // Files dropped on the page are opened, like picked ones.
  function takeDrops() {
    document.addEventListener("dragover", (event) => {
      if (event.dataTransfer && event.dataTransfer.types.includes("Files")) event.preventDefault();
    });
    document.addEventListener("drop", (event) => {
      if (!event.dataTransfer || !event.dataTransfer.files.length) return;
      event.preventDefault();
      openFile(event.dataTransfer.files[0]);
    });
  }

  // Save `text` as a file. Returns false if it would have no entry.
  function download(name, text, entries) {
    if (!entries) {
      FG.notice("There is nothing to download yet: submit at least one item.");
      return false;
    }
    const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    FG.el("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
    return true;
  }

  const plural = (count, one, many) => (count === 1 ? `1 ${one}` : `${count} ${many}`);

  function downloadFeedback() {
    const { store } = shell,
      total = store.items.length,
      done = store.done.length,
      skipped = store.skipped.length,
      left = total - done - skipped,
      { changed, lacking } = store;
    if (!download("feedback.json", store.text(), done)) return;
    const rest = left ? `; the ${left} not submitted yet are left out` : "";
    const without = skipped ? `; ${plural(skipped, "skipped item is", "skipped items are")} left out` : "";
    const parts = [`feedback.json has ${done} of ${total} items${rest}${without}.`];
    for (const [other, count] of lacking) {
      if (!count) continue;
      const verb = count === 1 ? "has" : "have";
      parts.push(`${plural(count, "row", "rows")} ${verb} no ${other}: training that uses it skips them.`);
    }
    if (!changed.length) {
      FG.notice(parts.join(" "));
      return;
    }
    const were = changed.length === 1 ? "was" : "were";
    parts.push(
      `${plural(changed.length, "item", "items")} ${were} changed after submission: the file has the submitted version.`,
    );
    noticeWith(parts.join(" "), [[`Go to item ${changed[0] + 1}`, () => shell.open(changed[0])]]);
  }

  function downloadRecord() {
    const { store } = shell;
    if (download("record.json", store.record(), store.done.length + store.skipped.length))
      FG.notice(
        "record.json has the annotator, the order in which texts were shown and the times, for the agreement report.",
      );
  }

  // A notice with buttons: [label, onclick].
  function noticeWith(text, actions) {
    FG.notice(text);
    const buttons = actions.map(([label, onclick]) => FG.el("button", { type: "button", onclick }, label));
    $("notice").append(...buttons.flatMap((node) => [" ", node]));
  }

  // ---- help --------------------------------------------------------------------------------------------------
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
      table([
        ["[ / ]", "previous item, next item"],
        ["}", "next item that is not done"],
        ["G", "go to an item by its number"],
        ...(FG.hasSources(schema) ? [["Shift+P", "hide or show the texts to judge by"]] : []),
        ...(FG.skipReasons(schema).length ? [["S", "skip this item, with a reason"]] : []),
      ]),
      FG.el("p", {}, "Keys do not work while a text field has focus; Esc leaves the field."),
      FG.el("p", { class: "hint" }, `Guideline version ${schema.guideline_version}.`),
      FG.el("button", { type: "button", class: "main", onclick: () => $("help").close() }, "Close"),
    );
    $("help").showModal();
    $("help").scrollTop = 0;
  }

  // Whether the annotator has finished with an item: submitted or skipped it.
  const isClosed = (item) => shell.store.isDone(item) || Boolean(shell.store.skippedOf(item));

  function status(work) {
    if (shell.store.skippedOf(work.item)) return "skipped";
    if (work.state.submitted) return work.changed ? "changed since submitted" : "submitted";
    return shell.store.isDone(work.item) ? "from the file" : "not submitted";
  }

  FG.showStatus = function (work) {
    const { store, at } = shell,
      total = store.items.length;
    const done = store.items.filter((item) => store.isDone(item)).length;
    const isLast = at >= total - 1;
    $("position").textContent = store.served
      ? `${store.progress} (this item: ${status(work)})`
      : `Item ${at + 1} of ${total} (${status(work)}), ${done} done`;
    $("previous").disabled = at <= 0;
    $("next").disabled = isLast && !(store.served && isClosed(work.item));
    $("next-open").disabled = !store.served && store.items.every(isClosed);
    FG.showSkipped(shell.schema, store.skippedOf(work.item), reopen);
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

  // ---- navigation --------------------------------------------------------------------------------------------
  const goPrevious = () => shell.open(shell.at - 1);

  function goNext() {
    const { store, at } = shell;
    if (at < store.items.length - 1) return shell.open(at + 1);
    return store.served && shell.work && isClosed(shell.work.item) ? goOpen() : null;
  }

  // The index of the next item that is not done, or -1.
  function nextOpen() {
    const { store, at } = shell,
      n = store.items.length;
    for (let k = 1; k < n; k++) if (!isClosed(store.items[(at + k) % n])) return (at + k) % n;
    return -1;
  }

  async function goOpen() {
    if (shell.store.served) {
      await goOn("");
      return;
    }
    const next = nextOpen();
    if (next >= 0) shell.open(next);
    else FG.say("No other item is left.");
  }

  function goToTyped(event) {
    if (event.key === "Escape") event.target.blur();
    if (event.key !== "Enter") return;
    const { items } = shell.store,
      typed = FG.strip(event.target.value),
      byId = items.findIndex((item) => item.id === typed),
      at = /^[0-9]+$/.test(typed) ? Number(typed) - 1 : byId;
    if (at < 0 || at >= items.length) {
      FG.notice(`There is no item ${typed}: type a number from 1 to ${items.length}, or an item's id.`);
      return;
    }
    event.target.value = "";
    event.target.blur();
    FG.notice("");
    shell.open(at);
  }

  // The server's next item; `before` is said before it.
  async function goOn(before) {
    const { store } = shell;
    let next;
    try {
      next = await store.advance();
    } catch (error) {
      FG.say(`${before}The next item could not be loaded: ${error.message}.`, "bad");
      return;
    }
    if (next < 0) {
      showEmpty();
      return;
    }
    await shell.open(next);
    if (before) FG.say(`${before}This is the next item.`, "good");
  }

  // After a submission or a skip: the next item that is not done, if there is one.
  FG.afterSubmit = async function (what = "submitted") {
    const { store, at } = shell,
      head = what[0].toUpperCase() + what.slice(1);
    if (store.served) {
      await goOn(`${head}. `);
      return;
    }
    const next = nextOpen();
    if (next >= 0) {
      shell.open(next);
      FG.say(`Item ${at + 1} is ${what}. This is item ${shell.at + 1}.`, "good");
      return;
    }
    FG.say(`${head}. All items are done: download feedback.json.`, "good");
    FG.notice("All items are done. Download feedback.json, and record.json if you were asked for it.");
    $("download").focus();
  };

  // ---- skipping ----------------------------------------------------------------------------------------------
  function askSkip() {
    const { work, schema } = shell;
    if (!work || !FG.skipReasons(schema).length) return;
    FG.askSkip(schema, async (skip) => {
      work.tick();
      const isStored = await shell.store.skip(work.item, work.state, skip);
      FG.showStatus(work);
      if (isStored) FG.afterSubmit("skipped");
    });
  }

  async function reopen() {
    const { work, store } = shell;
    const isStored = await store.skip(work.item, work.state, null);
    FG.showStatus(work);
    if (isStored) FG.say("Reopened: this item is yours again.", "good");
  }

  // ---- panels in place of an item ----------------------------------------------------------------------------
  function showPanel(title, ...children) {
    shell.work = null;
    $("empty").replaceChildren(FG.el("h2", {}, title), ...children);
    $("empty").hidden = false;
    $("work").hidden = true;
    for (const id of ["undo", "redo", "previous", "next", "next-open"]) $(id).disabled = true;
    $("position").textContent = "";
  }

  const mainButton = (id, label, onclick) =>
    FG.el("button", { type: "button", class: "main", id, onclick }, label);

  function showEmpty() {
    const { store } = shell;
    if (!store.served) {
      showPanel(
        "No items yet",
        FG.el(
          "p",
          {},
          "Open a file of items: feedback.json, samples.jsonl, or the output of fgrlhf feedback items. You can also drop it here.",
        ),
        mainButton("open-items", "Open items…", () => $("file").click()),
      );
      return;
    }
    showPanel(
      "Nothing left to do",
      FG.el(
        "p",
        {},
        `${store.progress}. Your submissions are stored. Reload the page to check for new items.`,
      ),
    );
    $("position").textContent = store.progress;
    shell.at = store.items.length;
    $("previous").disabled = !store.items.length;
  }

  // Ask for the annotator's name, or for the token of a server that needs one.
  function askIdentity(needs) {
    const { store } = shell,
      isToken = needs === "token";
    const field = FG.el("input", {
      type: "text",
      id: "name",
      autocomplete: "off",
      "aria-describedby": "name-problem",
      onkeydown: (event) => event.key === "Enter" && start(),
    });
    const problem = FG.el("p", { id: "name-problem", role: "alert", class: "bad" });
    function start() {
      try {
        store.identify(field.value, needs);
      } catch (error) {
        problem.textContent = `Not accepted: ${error.message}.`;
        return;
      }
      connect();
    }
    showPanel(
      isToken ? "Your link is needed" : "Who are you?",
      FG.el(
        "p",
        {},
        isToken
          ? "This server gives each annotator a personal link, and this page was opened without one, or with an old one."
          : "Your name is stored with your work. It keeps the work of several people apart.",
      ),
      FG.el("p", {}, FG.el("label", { for: "name" }, isToken ? "Your link or token" : "Your name"), field),
      problem,
      mainButton("start", "Start", start),
    );
    field.focus();
  }

  async function changeAnnotator() {
    const { store } = shell;
    if (store.served) await store.flush();
    askIdentity(store.identity);
    if (store.identity === "name") $("name").value = store.annotator || "";
    $("name").select();
  }

  // The annotator's stored work and the file differ: ask which of them to show.
  function askVersion(conflict, at) {
    const choose = (answer) => () => {
      answer();
      showItems(null, at);
    };
    const items = plural(conflict.count, "item", "items");
    showPanel(
      "Whose work?",
      FG.el(
        "p",
        {},
        `This browser has work of yours (${shell.store.annotator}) on ${items} of this file, and the file has something else there. The file's feedback may be someone else's. Your stored work is kept in either case.`,
      ),
      FG.el(
        "p",
        { class: "row" },
        mainButton("use-file", "Show the file's", choose(conflict.useFile)),
        FG.el("button", { type: "button", id: "use-mine", onclick: choose(conflict.useMine) }, "Go on with mine"),
      ),
    );
    $("use-file").focus();
  }

  function showRetry(error) {
    showPanel(
      "Items could not be loaded",
      FG.el("p", { role: "alert" }, `${error.message}.`),
      mainButton("retry", "Try again", connect),
    );
  }

  // Show the store's items from `at`, after its conflict, if it has one.
  function showItems(conflict, at) {
    const { store } = shell;
    $("who").textContent = store.annotator || "Annotator";
    if (conflict) askVersion(conflict, at);
    else if (store.items.length && at < store.items.length) shell.open(at);
    else showEmpty();
    if (store.isPicked && !conflict)
      noticeWith("These are the items of a file that you opened.", [["Back to the page's items", goInside]]);
  }

  function goInside() {
    const conflict = shell.store.goInside();
    FG.notice("");
    showItems(conflict, shell.store.position);
  }

  // Identify the annotator and show the items.
  async function connect() {
    const { store } = shell;
    FG.notice(store.warning);
    try {
      const conflict = await store.begin();
      showItems(conflict, store.position);
    } catch (error) {
      if (error.needs) askIdentity(error.needs);
      else showRetry(error);
    }
  }

  // Another tab changed the item that this one shows: show its version. `isIdle`: nothing was done here meanwhile.
  function showOther(isIdle) {
    shell.open(shell.at);
    const lost = isIdle ? "" : " Your last step here was not stored: repeat it.";
    FG.notice(`This item was changed in another tab; this is its version.${lost}`);
    if (!isIdle) FG.say("Not stored: the item was changed in another tab.", "bad");
  }

  // ---- keys and the start ------------------------------------------------------------------------------------
  // Keys of both pages, outside of fields. Returns whether the key was one of them.
  function barKey({ key, shiftKey }) {
    if (key === "?") showHelp();
    else if (key === "[") goPrevious();
    else if (key === "]") goNext();
    else if (key === "}") goOpen();
    else if (key.toLowerCase() === "g") $("goto").focus();
    else if (key.toLowerCase() === "s") askSkip();
    else if (key.toLowerCase() === "p" && shiftKey) toggleSources();
    else return false;
    return true;
  }

  function onKey(event) {
    const field = event.target.closest("input:not([type=checkbox]):not([type=radio]), textarea, select");
    const command = event.ctrlKey || event.metaKey;
    if (FG.isAsking() || !shell.work) return;
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
    if (barKey(event)) {
      event.preventDefault();
      return;
    }
    shell.hooks.key(event);
  }

  // Show the item with this index. The server's items are loaded first.
  async function open(at) {
    const { store, hooks, schema } = shell;
    if (at < 0 || at >= store.items.length) return;
    if (store.served)
      try {
        await store.fetch(at);
      } catch (error) {
        FG.notice(`Item ${at + 1} could not be loaded: ${error.message}.`);
        return;
      }
    shell.at = at;
    store.position = at;
    const item = store.items[at];
    shell.work = new FG.Work(store, item, hooks.fresh(item, schema, store));
    $("empty").hidden = true;
    $("empty").replaceChildren();
    $("work").hidden = false;
    FG.say("");
    FG.showProblems([]);
    FG.showGuide(schema, store);
    hooks.open(shell.work);
    window.scrollTo(0, 0); // the submit button is at the end of the page
    FG.showStatus(shell.work);
  }

  // Everything that shows that the annotator is at work counts as activity.
  function watchActivity() {
    const tick = () => {
      if (!shell.work) return;
      shell.work.tick();
      if (shell.store.served) shell.store.active = FG.now();
    };
    for (const type of ["keydown", "pointerdown", "pointermove", "wheel", "scroll"])
      document.addEventListener(type, tick, { capture: true, passive: true });
    document.addEventListener("visibilitychange", () => {
      if (shell.work) shell.work.setVisible(!document.hidden);
    });
  }

  // Start a page. hooks: open(work) shows an item, step(back), submit(), key(event), fresh(item, schema,
  // store) returns the document of an item without work, help(table).
  FG.start = function (page, hooks) {
    const schema = window.FG_SCHEMA;
    shell = { schema, page, hooks, at: 0, work: null, store: null, open };
    document.title = `${schema.title}: ${page}`;
    try {
      shell.store = FG.newStore(schema, page);
    } catch (error) {
      FG.notice(`Items could not be read: ${error.message}.`);
      return;
    }
    shell.store.onOther = showOther;
    buildBar();
    watchActivity();
    if (!shell.store.served) takeDrops();
    document.addEventListener("keydown", onKey);
    connect();
  };
})(window.FG);
