// Shared by all pages: the bar, navigation between items, help, colours, keys and the start.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = FG.$,
    { t, tn } = FG;

  // ---- the bar -----------------------------------------------------------------------------------------------
  const THEMES = ["auto", "light", "dark"];
  let shell = null;

  const THEME_LABELS = {
    auto: t("Colours: automatic"),
    light: t("Colours: light"),
    dark: t("Colours: dark"),
  };
  const PAGE_NAMES = { annotation: t("annotation"), comparison: t("comparison"), rating: t("rating") };
  const RECORD = t(
    "The annotator, the order in which texts were shown and the times, for the agreement report",
  );

  function button(id, label, onclick, key, title) {
    return FG.el(
      "button",
      { type: "button", id, onclick, "aria-keyshortcuts": key, title: title || key },
      label,
    );
  }

  function setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    $("theme").textContent = THEME_LABELS[theme];
    shell.store.write(shell.store.name("theme"), theme);
  }

  // Hide or show the texts to judge by, also after a reload.
  FG.hideSources = function (isHidden) {
    const { schema, store } = shell;
    FG.placeSources(FG.hasSources(schema) && !isHidden);
    if (!FG.hasSources(schema)) return;
    store.write(store.name("sources"), isHidden ? "hidden" : "shown");
    $("hide-sources").textContent = isHidden ? t("Show texts") : t("Hide texts");
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
      "aria-label": t("Items file"),
      onchange: pickFile,
      tabindex: "-1",
    });
    $("bar").replaceChildren(
      FG.el("h1", {}, FG.own(schema.title), `: ${PAGE_NAMES[shell.page]}`),
      FG.el("nav", { id: "pages", "aria-label": t("Pages"), hidden: true }),
      FG.el(
        "nav",
        { "aria-label": t("Items") },
        button("previous", t("‹ Previous"), goPrevious, "["),
        FG.el("span", { id: "position" }),
        store.served ? FG.el("span", { id: "lease", hidden: true }) : null,
        store.served ? FG.el("span", { id: "lease-said", class: "hidden", role: "status" }) : null,
        button("next", t("Next ›"), goNext, "]"),
        button("next-open", t("Next not done"), goOpen, "}"),
        FG.el("input", {
          type: "text",
          id: "goto",
          inputmode: "numeric",
          size: 4,
          "aria-label": t("Go to item"),
          "aria-keyshortcuts": "G",
          placeholder: t("Go to"),
          title: "G",
          onkeydown: goToTyped,
        }),
      ),
      FG.el(
        "div",
        { class: "tools", role: "group", "aria-label": t("Tools") },
        button("undo", t("Undo"), () => hooks.step(true), "Control+Z"),
        button("redo", t("Redo"), () => hooks.step(false), "Control+Shift+Z"),
        FG.skipReasons(schema).length ? button("skip", t("Skip…"), askSkip, "S") : null,
        store.served ? null : button("pick", t("Open items…"), () => picker.click()),
        store.served ? null : picker,
        store.served ? null : button("download", t("Download feedback.json"), downloadFeedback),
        store.served ? null : button("record", "record.json", downloadRecord, null, RECORD),
        button("who", t("Annotator"), changeAnnotator, null, t("Change the annotator")),
        FG.hasSources(schema) ? button("hide-sources", t("Hide texts"), toggleSources, "Shift+P") : null,
        button("help-button", t("Help ?"), showHelp, "?"),
        button("theme", THEME_LABELS.auto, () =>
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

  // Links to the other pages that the server has. They know the annotator as this one does.
  function otherPages() {
    const others = shell.store.pages.filter((page) => page !== shell.page);
    const go = async (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return; // another tab
      event.preventDefault();
      await shell.store.flush();
      location.assign(event.target.href);
    };
    return others.map((page) => FG.el("a", { href: `${page}.html`, onclick: go }, PAGE_NAMES[page]));
  }

  function showPages() {
    const links = otherPages();
    $("pages").replaceChildren(...links.flatMap((link) => [link, " "]));
    $("pages").hidden = !links.length;
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
      FG.notice(t("Type your name first, then open the file."));
      return;
    }
    let opened;
    try {
      opened = store.take(await file.text());
    } catch (error) {
      FG.notice(t("{file} was not opened: {reason}.", { file: file.name, reason: error.message }));
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
      FG.notice(t("There is nothing to download yet: submit at least one item."));
      return false;
    }
    const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    FG.el("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
    return true;
  }

  // Rows that another page of the task has not judged.
  const LACKING = {
    annotation: (n) => tn("{n} row has no annotation: training that uses it skips it.", "{n} rows have no annotation: training that uses it skips them.", { n }),
    comparison: (n) => tn("{n} row has no comparison: training that uses it skips it.", "{n} rows have no comparison: training that uses it skips them.", { n }),
    rating: (n) => tn("{n} row has no rating: training that uses it skips it.", "{n} rows have no rating: training that uses it skips them.", { n }),
  };

  function downloadFeedback() {
    const { store } = shell,
      total = store.items.length,
      done = store.done.length,
      skipped = store.skipped.length,
      left = total - done - skipped,
      { changed, lacking } = store;
    if (!download("feedback.json", store.text(), done)) return;
    const parts = [t("feedback.json has {done} of {total} items.", { done, total })];
    if (left)
      parts.push(
        tn("{n} not submitted yet is left out.", "{n} not submitted yet are left out.", { n: left }),
      );
    if (skipped)
      parts.push(
        tn("{n} skipped item is left out.", "{n} skipped items are left out.", { n: skipped }),
      );
    for (const [other, count] of lacking) if (count) parts.push(LACKING[other](count));
    if (!changed.length) {
      FG.notice(parts.join(" "));
      return;
    }
    parts.push(
      tn(
        "{n} item has changes that are not submitted: the file has the version before them.",
        "{n} items have changes that are not submitted: the file has the version before them.",
        { n: changed.length },
      ),
    );
    const label = t("Go to item {n}", { n: changed[0] + 1 });
    FG.notice(parts.join(" "), [[label, () => shell.open(changed[0])]]);
  }

  function downloadRecord() {
    const { store } = shell;
    if (download("record.json", store.record(), store.done.length + store.skipped.length))
      FG.notice(
        t(
          "record.json has the annotator, the order in which texts were shown and the times, for the agreement report.",
        ),
      );
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
      FG.el("h2", { id: "help-title" }, t("Help")),
      ...schema.guideline.map((text) => FG.el("p", {}, FG.own(text))),
      ...hooks.help(table),
      table([
        ["[ / ]", t("previous item, next item")],
        ["}", t("next item that is not done")],
        ["G", t("go to an item by its number")],
        ...(FG.hasSources(schema) ? [["Shift+P", t("hide or show the texts to judge by")]] : []),
        ...(FG.skipReasons(schema).length ? [["S", t("skip this item, with a reason")]] : []),
      ]),
      FG.el("p", {}, t("Keys do not work while a text field has focus; Esc leaves the field.")),
      FG.el(
        "p",
        {},
        t("If your keyboard has no brackets or no Latin letters, use the keys that a US keyboard has for them."),
      ),
      FG.el("p", { class: "hint" }, t("Guideline version {version}.", { version: schema.guideline_version })),
      FG.el("button", { type: "button", class: "main", onclick: () => $("help").close() }, t("Close")),
    );
    $("help").showModal();
    $("help").scrollTop = 0;
  }

  // Whether the annotator has finished with an item: submitted or skipped it.
  const isClosed = (item) => shell.store.isDone(item) || Boolean(shell.store.skippedOf(item));

  function status(work) {
    if (shell.store.skippedOf(work.item)) return t("skipped");
    if (work.state.submitted) return work.changed ? t("changed since submitted") : t("submitted");
    if (!shell.store.isDone(work.item)) return t("not submitted");
    return shell.store.summary(work.item).changed ? t("changed, not submitted") : t("from the file");
  }

  FG.showStatus = function (work) {
    const { store, at } = shell,
      total = store.items.length;
    const done = store.items.filter((item) => store.isDone(item)).length;
    const isLast = at >= total - 1;
    $("position").textContent = store.served
      ? t("{progress} (this item: {status})", { progress: store.progress, status: status(work) })
      : t("Item {n} of {total} ({status}), {done} done", { n: at + 1, total, status: status(work), done });
    $("previous").disabled = at <= 0;
    $("next").disabled = isLast && !(store.served && isClosed(work.item));
    $("next-open").disabled = !store.served && store.items.every(isClosed);
    FG.showSkipped(shell.schema, store.skippedOf(work.item), reopen);
    $("undo").disabled = !work.state.undo.length;
    $("redo").disabled = !work.state.redo.length;
    followProblems();
    if (store.warning) FG.notice(store.warning);
  };

  // List the problems to fix before submitting: {text, go, remedy}. Each entry goes to its place, and may have a remedy,
  // [label, onclick]. With `find`, which finds them, the list follows the work until none is left.
  FG.showProblems = function (problems, find = null) {
    const count = problems.length;
    listed = { problems, find: count ? find : null };
    if (!count) {
      $("problems").replaceChildren();
      return;
    }
    const entries = problems.map(({ text, remedy }, i) =>
      FG.el(
        "li",
        {},
        FG.el(
          "button",
          { type: "button", class: "link", onclick: () => listed.problems[i].go() },
          FG.oneStop(text),
        ),
        remedy ? [" ", FG.el("button", { type: "button", class: "remedy", onclick: remedy[1] }, remedy[0])] : null,
      ),
    );
    $("problems").replaceChildren(
      FG.el(
        "p",
        {},
        tn("Not submitted: {n} problem to fix.", "Not submitted: {n} problems to fix.", { n: count }),
      ),
      FG.el("ul", {}, entries),
    );
  };

  let listed = { problems: [], find: null };

  // The list after a change of the work. It is drawn and read out again only if its texts differ; the places to which its
  // buttons go are always the new ones.
  function followProblems() {
    if (!listed.find) return;
    const problems = listed.find(),
      texts = (list) => list.map(({ text }) => text);
    if (FG.same(texts(problems), texts(listed.problems))) listed.problems = problems;
    else FG.showProblems(problems, listed.find);
  }

  // Submit the work, or list what `findProblems` finds and go to the first of them.
  FG.submit = async function (work, findProblems) {
    const problems = findProblems();
    FG.showProblems(problems, findProblems);
    if (problems.length) {
      problems[0].go(); // what it says about the place is less urgent
      FG.say(t("Not submitted: {problem}", { problem: problems[0].text }), "bad");
      return;
    }
    const isStored = await work.submit();
    FG.showStatus(work);
    if (isStored) FG.afterSubmit();
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
    else FG.say(t("No other item is left."));
  }

  function goToTyped(event) {
    if (event.key === "Escape") event.target.blur();
    if (event.key !== "Enter") return;
    const { items } = shell.store,
      typed = FG.strip(event.target.value),
      byId = items.findIndex((item) => item.id === typed),
      at = /^[0-9]+$/.test(typed) ? Number(typed) - 1 : byId;
    if (at < 0 || at >= items.length) {
      FG.notice(
        t("There is no item {typed}: type a number from 1 to {n}, or an item's id.", {
          typed,
          n: items.length,
        }),
      );
      return;
    }
    event.target.value = "";
    event.target.blur();
    FG.notice("");
    shell.open(at);
  }

  const sentences = (...texts) => texts.filter(Boolean).join(" ");

  // The server's next item; `before` is said before it.
  async function goOn(before) {
    const { store } = shell;
    let next;
    try {
      next = await store.advance();
    } catch (error) {
      const reason = t("The next item could not be loaded: {reason}.", { reason: error.message });
      FG.say(sentences(before, reason), "bad");
      return;
    }
    if (next < 0) {
      showEmpty();
      return;
    }
    await shell.open(next);
    if (before) FG.say(sentences(before, t("This is the next item.")), "good");
  }

  // After a submission or a skip: the next item that is not done, if there is one.
  FG.afterSubmit = async function (isSkipped = false) {
    const { store } = shell,
      submitted = store.isUnchanged ? t("Unchanged: your earlier submission stays.") : t("Submitted."),
      head = isSkipped ? t("Skipped.") : submitted;
    if (store.served) {
      await goOn(head);
      return;
    }
    const next = nextOpen();
    if (next >= 0) {
      shell.open(next);
      FG.say(sentences(head, t("This is the next item.")), "good");
      return;
    }
    FG.say(sentences(head, t("All items are done: download feedback.json.")), "good");
    FG.notice(t("All items are done. Download feedback.json, and record.json if you were asked for it."));
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
      if (isStored) FG.afterSubmit(true);
    });
  }

  async function reopen() {
    const { work, store } = shell;
    const isStored = await store.skip(work.item, work.state, null);
    FG.showStatus(work);
    if (isStored) FG.say(t("Reopened."), "good");
  }

  // ---- panels in place of an item ----------------------------------------------------------------------------
  function showPanel(title, ...children) {
    shell.work = shell.store.opened = null;
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
        t("No items yet"),
        FG.el(
          "p",
          {},
          t(
            "Open a file of items: feedback.json, samples.jsonl, or the output of fgrlhf feedback items. You can also drop it here.",
          ),
        ),
        mainButton("open-items", t("Open items…"), () => $("file").click()),
      );
      return;
    }
    showPanel(
      t("Nothing left to do"),
      FG.el(
        "p",
        {},
        t("{progress}. Your submissions are stored. Reload the page to check for new items.", {
          progress: store.progress,
        }),
      ),
      ...otherPages().map((link) => FG.el("p", {}, t("Another page:"), " ", link)),
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
        problem.textContent = t("Not accepted: {reason}.", { reason: error.message });
        return;
      }
      connect();
    }
    showPanel(
      isToken ? t("Your link is needed") : t("Who are you?"),
      FG.el(
        "p",
        {},
        isToken
          ? t(
              "This server gives each annotator a personal link, and this page was opened without one, or with an old one.",
            )
          : t("Your name is stored with your work. It keeps the work of several people apart."),
      ),
      FG.el("p", {}, FG.el("label", { for: "name" }, isToken ? t("Your link or token") : t("Your name")), field),
      problem,
      mainButton("start", t("Start"), start),
    );
    field.focus();
  }

  // The study knows the name that was typed in this browser for the first time: ask whether it is the same person.
  function askWhetherYou({ annotator, submissions }) {
    const { store } = shell,
      isMe = () => {
        store.confirm();
        connect();
      };
    showPanel(
      t("Is that you?"),
      FG.el(
        "p",
        {},
        tn("{name} has {n} submission here: is that you?", "{name} has {n} submissions here: is that you?", {
          n: submissions,
          name: annotator,
        }),
      ),
      FG.el(
        "p",
        { class: "hint" },
        t("Work under one name counts as one person's. If it is not you, choose another name, such as one with your surname."),
      ),
      FG.el(
        "p",
        { class: "row" },
        mainButton("is-me", t("Yes, that is me"), isMe),
        FG.el("button", { type: "button", id: "not-me", onclick: () => askIdentity("name") }, t("No, another name")),
      ),
    );
    $("not-me").focus();
  }

  async function changeAnnotator() {
    const { store } = shell;
    if (store.served) await store.flush();
    FG.notice("");
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
    showPanel(
      t("Whose work?"),
      FG.el(
        "p",
        {},
        tn(
          "This browser has work of yours ({name}) on {n} item of this file, and the file has something else there. The file's feedback may be someone else's. Your stored work is kept in either case.",
          "This browser has work of yours ({name}) on {n} items of this file, and the file has something else there. The file's feedback may be someone else's. Your stored work is kept in either case.",
          { n: conflict.count, name: shell.store.annotator },
        ),
      ),
      FG.el(
        "p",
        { class: "row" },
        mainButton("use-file", t("Show the file's"), choose(conflict.useFile)),
        FG.el("button", { type: "button", id: "use-mine", onclick: choose(conflict.useMine) }, t("Go on with mine")),
      ),
    );
    $("use-file").focus();
  }

  function showRetry(error) {
    showPanel(
      t("Items could not be loaded"),
      FG.el("p", { role: "alert" }, `${error.message}.`),
      mainButton("retry", t("Try again"), connect),
    );
  }

  // Show the store's items from `at`, after its conflict, if it has one.
  function showItems(conflict, at) {
    const { store } = shell;
    $("who").textContent = store.annotator || t("Annotator");
    if (conflict) askVersion(conflict, at);
    else if (store.items.length && at < store.items.length) shell.open(at);
    else showEmpty();
    if (store.isPicked && !conflict)
      FG.notice(t("These are the items of a file that you opened."), [
        [t("Back to the page's items"), goInside],
      ]);
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
      showPages();
      showItems(conflict, store.position);
    } catch (error) {
      if (error.needs === "confirmation") askWhetherYou(error);
      else if (error.needs) askIdentity(error.needs);
      else showRetry(error);
    }
  }

  // Another window stored the state `theirs` of the open item, after both had the document `base`: show it, with what was
  // changed here meanwhile. Returns false if both changed the same part.
  function joinOther(theirs, base) {
    const { work, hooks, schema } = shell,
      shown = ({ doc, submitted, skipped }) => FG.clone({ doc, submitted, skipped }),
      before = shown(work.state),
      isJoined = work.follow(theirs, base);
    if (isJoined === null) return false;
    FG.fitSchema(schema, work.state);
    if (!FG.same(before, shown(work.state))) {
      hooks.refresh();
      FG.showProblems([]);
      shell.joined = isJoined
        ? t("This item was changed in another tab; its changes were added to yours.")
        : t("This item was changed in another tab; this is its version.");
      FG.notice(shell.joined);
    }
    FG.showStatus(work);
    return true;
  }

  // Two windows changed the same part of an item: ask whose work stays. Returns the notice.
  FG.askWhoseWork = function (load, keep) {
    const text = t("Not stored: another window changed the same part of this item.");
    FG.notice(text, [
      [t("Load the work of the other window"), load],
      [t("Keep the work of this window"), keep],
    ]);
    return text;
  };

  // ---- keys and the start ------------------------------------------------------------------------------------
  // Keys of both pages, outside of fields. Returns whether the key was one of them.
  function barKey(event) {
    const key = FG.keyOf(event).toLowerCase(),
      bracket = FG.bracketOf(event);
    if (key === "?") showHelp();
    else if (bracket === "[") goPrevious();
    else if (bracket === "]") goNext();
    else if (bracket === "}") goOpen();
    else if (key === "g") $("goto").focus();
    else if (key === "s") askSkip();
    else if (key === "p" && event.shiftKey) toggleSources();
    else return false;
    return true;
  }

  function onKey(event) {
    const field = event.target.closest("input:not([type=checkbox]):not([type=radio]), textarea, select");
    const command = event.ctrlKey || event.metaKey;
    if (FG.isAsking() || !shell.work) return;
    const key = FG.keyOf(event).toLowerCase(),
      z = key === "z",
      y = key === "y";
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
    // Many keyboards type brackets with Option or AltGr. AltGr is Control and Alt in some browsers.
    const isTypedBracket = event.altKey && !event.metaKey && FG.bracketOf(event) === event.key;
    if ((command || event.altKey) && !isTypedBracket) return;
    if (event.isComposing) return;
    // A held key repeats. It must not decide the next pair or scale too.
    if (event.repeat && /^[\p{L}\p{N}]$/u.test(event.key) && (!field || field.inputMode === "numeric")) {
      event.preventDefault();
      return;
    }
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
        FG.notice(t("Item {n} could not be loaded: {reason}.", { n: at + 1, reason: error.message }));
        return;
      }
    if ($("notice").textContent === shell.joined) FG.notice(""); // it was about the item before
    shell.at = at;
    store.position = at;
    const item = store.items[at];
    shell.work = new FG.Work(store, item, hooks.fresh(item, schema, store));
    store.opened = shell.work;
    FG.fitSchema(schema, shell.work.state);
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

  // Start a page. hooks: open(work) shows an item, refresh() what another window changed of it, step(back), submit(),
  // key(event), fresh(item, schema, store) returns the document of an item without work, help(table).
  FG.start = function (page, hooks) {
    const schema = window.FG_SCHEMA;
    shell = { schema, page, hooks, at: 0, work: null, store: null, joined: null, open };
    document.title = `${schema.title}: ${PAGE_NAMES[page]}`;
    try {
      shell.store = FG.newStore(schema, page);
    } catch (error) {
      FG.notice(t("Items could not be read: {reason}.", { reason: error.message }));
      return;
    }
    shell.store.onOther = joinOther;
    shell.store.onNews = () => shell.work && FG.showStatus(shell.work);
    shell.store.reopen = () => {
      FG.notice("");
      shell.open(shell.at);
    };
    window.addEventListener("beforeunload", (event) => {
      if (shell.store.storage.isVolatile) event.preventDefault(); // the browser asks before it closes the page
    });
    buildBar();
    watchActivity();
    if (!shell.store.served) takeDrops();
    document.addEventListener("keydown", onKey);
    connect();
  };
})(window.FG);
