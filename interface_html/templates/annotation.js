// The annotation page: errors in a text, missing information, and the corrected text. This file shows the work on an
// item and distributes keys; marking.js changes errors, evidence.js their evidence.
"use strict";
(function () {
  const FG = window.FG,
    { $, t } = FG,
    schema = window.FG_SCHEMA,
    NOUN = schema.fields.noun;
  const DIFF_PAUSE = 150; // milliseconds without a key before the changes are compared
  let work = null;

  // `views`: the text of each side in which errors are marked. `side`: the one that keys refer to.
  // `active`: {list, index} of the entry that keys refer to. `mode`: "span" while the span of the active error is
  // edited, "earlier" while its earlier text is selected. `keep`: whether a chosen kind stays on, as `sticky`.
  // `sheet`: whether the sources are a sheet. `refused`: the data-key of a field whose evidence was not accepted.
  const page = {
    schema,
    views: {},
    side: FG.RESPONSE,
    active: null,
    mode: null,
    keep: false,
    sticky: null,
    sheet: false,
    refused: null,
    get view() {
      return page.views[page.side];
    },
    get work() {
      return work;
    },
    get doc() {
      return work.doc;
    },
    get row() {
      return work.item.row;
    },
  };
  const text = () => page.row[FG.textKey(schema)];
  page.textName = function (side) {
    if (side === FG.SOURCE) return t("source");
    return schema.mark_outputs ? t("{noun} {letter}", { noun: NOUN, letter: FG.outputNumber(side) }) : NOUN;
  };

  // Let keys refer to the text of a side. A span that is edited in the other text is left.
  page.use = function (side) {
    if (side === page.side) return;
    page.view.collapse();
    page.side = side;
    page.mode = null;
  };

  // The index of the active error, or -1.
  const current = () => (page.active && page.active.list === "errors" ? page.active.index : -1);

  page.labelOf = function (i) {
    const kind = FG.kind(schema, work.doc.errors[i]["error type"]),
      parts = { n: i + 1, kind: kind.label };
    return kind.positive ? t("liked span {n} ({kind})", parts) : t("error {n} ({kind})", parts);
  };
  page.refuse = function (reason) {
    FG.say(reason, "bad");
    return false;
  };

  // Make a document that of the item. Documents with the same `key` in a short time are one step to undo.
  page.commit = function (doc, key) {
    work.commit(FG.withVerdicts(page.row, doc), key);
    page.render();
  };

  // Change parts of the document. What an adjudicator changes is decided.
  page.change = (parts, key) => page.commit(page.withOwnDecisions({ ...work.doc, ...parts }), key);

  // What an item to adjudicate starts from; null for other items.
  function startOf(row) {
    const docs = FG.annotationsOf(schema, row);
    if (docs.length) return FG.startOf(schema, row, docs);
    return FG.isAnnotation(schema, row.shared) ? row.shared : null;
  }

  // The document of an item without work on it: empty, the feedback in its file, or the start of an adjudication.
  function fresh(item) {
    const start = startOf(item.row),
      feedback = item.row.feedback || start,
      original = item.row[FG.textKey(schema)];
    if (!feedback)
      return {
        errors: [],
        "missing-info": [],
        "corrected-prediction": schema.correction ? original : "",
        "no-error": false,
      };
    return {
      errors: FG.clone(feedback.errors),
      "missing-info": FG.clone(feedback["missing-info"]),
      "corrected-prediction": feedback["corrected-prediction"],
      "no-error": Boolean(item.row.feedback) && !FG.countErrors(schema, feedback),
      ...(start && start.decisions ? { decisions: {} } : {}),
      ...FG.keptNotes(feedback),
    };
  }

  // ---- rendering ----------------------------------------------------------------------------------------------
  page.render = function () {
    const { doc } = page;
    if (page.active && !doc[page.active.list][page.active.index]) page.active = null;
    if (current() >= 0) page.use(FG.sideOf(doc.errors[current()]));
    const marks = doc.errors.map((error, i) => {
      const kind = FG.kind(schema, error["error type"]);
      const badge = FG.badgeText(kind, i) + FG.severityLetter(schema, error);
      return { ...error, kind, badge, active: i === current() };
    });
    const active = doc.errors[current()];
    for (const [side, view] of Object.entries(page.views)) {
      const isActive = active && FG.sideOf(active) === side;
      view.paint(
        marks.filter((mark) => FG.sideOf(mark) === side),
        isActive ? FG.earlierRange(schema, view.points, active) : null,
      );
    }
    FG.showCards(page);
    page.showSuggestions();
    page.showTaken();
    FG.showKinds(page);
    FG.showSheet(page);
    $("no-error").checked = doc["no-error"];
    showCorrection();
    if (schema.correction) FG.showDiff(page);
    FG.showNotes(work.doc);
    FG.showStatus(work);
  };

  // Put the correction into its field. The caret goes to where the text changed.
  function showCorrection() {
    const field = $("correction"),
      shown = work.doc["corrected-prediction"].replace(/\r\n?/g, "\n"),
      old = field.value;
    if (old === shown) return;
    let tail = 0;
    const most = Math.min(old.length, shown.length);
    let head = 0;
    while (head < most && old[head] === shown[head]) head++;
    while (tail < most - head && old[old.length - 1 - tail] === shown[shown.length - 1 - tail]) tail++;
    const scroll = field.scrollTop;
    field.value = shown;
    field.setSelectionRange(shown.length - tail, shown.length - tail);
    field.scrollTop = scroll;
  }

  // Comparing two long texts takes longer than a key may take, so it waits for a pause.
  let pause = null;
  function correctionTyped(event) {
    const corrected = FG.fromField(event.target.value, text());
    work.commit(page.withOwnDecisions({ ...work.doc, "corrected-prediction": corrected }), "correction");
    page.showTaken();
    FG.showStatus(work);
    clearTimeout(pause);
    const typed = work;
    pause = setTimeout(() => {
      if (typed === work) FG.showDiff(page);
    }, DIFF_PAUSE);
  }

  // Tell a screen reader what the cursor or the selection is.
  function announce() {
    const { view } = page,
      range = view.range;
    if (!range) return;
    const quote = FG.quote(view.points, ...range);
    const at = FG.markAt(schema, work.doc.errors, page.side, ...range),
      isSource = page.side === FG.SOURCE,
      suggested = page.suggestionAt(range),
      isWords = schema.unit === "word";
    const mark =
        at < 0 ? suggested || t("not marked") : t("marked: {error}", { error: page.labelOf(at) }),
      size = FG.countUnits(page, ...range),
      parts = { quote, size, mark, n: view.cursor + 1, total: view.units.length };
    let words;
    if (view.isSelected && !view.tapped)
      words = isSource
        ? t("Selected in the source: “{quote}”, {size}, {mark}", parts)
        : t("Selected: “{quote}”, {size}, {mark}", parts);
    else if (isSource)
      words = isWords
        ? t("“{quote}”, word {n} of {total} of the source, {mark}", parts)
        : t("“{quote}”, sentence {n} of {total} of the source, {mark}", parts);
    else
      words = isWords
        ? t("“{quote}”, word {n} of {total}, {mark}", parts)
        : t("“{quote}”, sentence {n} of {total}, {mark}", parts);
    const isOneOfSeveral = schema.mark_outputs && !isSource;
    $("announce").textContent = isOneOfSeveral
      ? t("{title}: {value}", { title: FG.capital(page.textName(page.side)), value: words })
      : words;
  }

  // ---- the pointer and the cursor -----------------------------------------------------------------------------
  function moved() {
    if (!page.mode) {
      const { view } = page,
        range = view.range;
      const { errors } = work.doc,
        at = range && !view.isSelected ? FG.markAt(schema, errors, page.side, ...range, current()) : -1;
      if (at >= 0) page.active = { list: "errors", index: at };
      else if (page.active && page.active.list === "errors") page.active = null;
      page.followSuggestion();
    }
    page.render();
    announce();
  }

  function tapped(i) {
    const [start, end] = page.view.units[i],
      at = page.mode ? -1 : FG.markAt(schema, work.doc.errors, page.side, start, end, current());
    if (at < 0) return;
    page.activate("errors", at);
    const label = page.labelOf(at),
      next = FG.isTouch
        ? t("Choose another kind, or remove it in the list.")
        : t("E edits, Del removes.");
    FG.say(`${FG.capital(label)}. ${next}`);
  }

  function dragged() {
    if (page.mode === "earlier") page.useEarlier();
    else if (page.sticky && !page.mode) page.chooseError(page.sticky);
  }

  function hovered(side, i) {
    const unit = page.views[side].units[i];
    FG.linkEntry(page, unit ? FG.markAt(schema, work.doc.errors, side, ...unit) : -1);
  }

  // ---- submitting --------------------------------------------------------------------------------------------
  function findProblems() {
    const broken = [
      ...FG.annotationProblems(schema, page.row, work.doc),
      ...FG.undecidedProblems(page.row, work.doc),
    ];
    return [
      ...page.differenceProblems(),
      ...FG.problemsShown(broken).map((problem) => FG.explained(page, problem)),
    ];
  }

  function submit() {
    page.commitAllTyped();
    FG.submit(work, findProblems);
  }

  // ---- keys --------------------------------------------------------------------------------------------------
  // The digit of a key event. Where digits need Shift (AZERTY), the key below the digit counts as well.
  function digitOf(event) {
    if (/^[1-9]$/.test(event.key) && !event.shiftKey) return event.key;
    const code = /^Digit([1-9])$/.exec(event.code || "");
    return code ? code[1] : null;
  }

  // Go to the sources; show them if they are hidden.
  function goToSources() {
    if (!FG.hasSources(schema)) {
      page.refuse(t("There are no other texts on this page."));
      return;
    }
    FG.hideSources(false);
    $("sources").scrollIntoView({ block: "nearest" });
    $("sources").focus();
  }

  const ACTIONS = {
    ".": () => page.goDifference(1),
    ",": () => page.goDifference(-1),
    n: () => page.toggleNone(),
    e: () => page.editSuggestion() || page.editActive(),
    y: (event) => (event.shiftKey ? page.acceptSure() : page.accept()),
    x: () => page.rejectSuggestion(),
    c: () => (schema.correction ? $("correction").focus() : page.refuse(t("There is no correction to edit."))),
    p: goToSources,
  };

  function key(event) {
    const digit = digitOf(event),
      kind = digit && [...schema.errors, ...schema.missing].find((other) => other.key === digit),
      action = ACTIONS[FG.keyOf(event).toLowerCase()];
    if (kind) {
      event.preventDefault();
      if (!("needs" in kind)) page.chooseMissing(kind);
      else if (event.shiftKey) page.keepKind(kind);
      else page.pressKind(kind);
    } else if (event.key === "Escape") {
      event.preventDefault();
      escape();
    } else if (event.key === "Enter" && page.mode && !event.target.closest("button")) {
      event.preventDefault();
      page.confirm();
    } else if (page.severityKey(event)) {
      event.preventDefault();
    } else if (action) {
      event.preventDefault();
      action(event);
    } else if (event.key === "Delete" || event.key === "Backspace") {
      event.preventDefault();
      page.removeActive();
    }
  }

  function escape() {
    if (!page.mode && page.keep) page.setKeep(false);
    page.leave();
    page.view.node.focus();
    if (page.view.cursor < 0) page.view.move(0, false);
  }

  function fieldKey(event) {
    if (event.key !== "Escape") return;
    event.preventDefault();
    page.view.node.focus();
  }

  // Alt+arrow moves the end of the active span, with Shift its start.
  function altKey(event) {
    const isArrow = event.key === "ArrowLeft" || event.key === "ArrowRight";
    if (!work || !event.altKey || event.ctrlKey || event.metaKey || !isArrow) return;
    if (event.target.closest("input[type=text], textarea") || FG.isAsking()) return;
    event.preventDefault();
    const isRtl = getComputedStyle(page.view.node).direction === "rtl",
      isForward = (event.key === "ArrowRight") !== isRtl;
    page.nudge(event.shiftKey ? "start" : "end", isForward ? 1 : -1);
  }

  // ---- start -------------------------------------------------------------------------------------------------
  function open(next) {
    work = next;
    page.active = page.mode = page.refused = null;
    page.suggested = -1;
    FG.fitSuggestions(next);
    page.sheet = false;
    FG.showTexts(schema, page.row, schema.fields.context ? page.pickSentence : null);
    FG.addSheet(page);
    page.side = FG.RESPONSE;
    for (const [side, view] of Object.entries(page.views)) view.show(schema, page.row[FG.sideKey(schema, side)]);
    if (FG.marksSource(schema)) nameSource();
    page.openAnnotations();
    $("announce").textContent = "";
    $("correction").value = "";
    FG.showNotes({});
    page.render();
    $("correction").setSelectionRange(0, 0);
    $("text").focus({ preventScroll: true });
    page.view.cursor = page.suggested = -1; // the focus went to the first word, which may be suggested
    page.render();
  }

  // The title of an item whose source is marked is a heading: its text is below.
  function nameSource() {
    $("item-title").textContent = t("Source");
    $("turns").hidden = true;
  }

  function step(back) {
    const list = page.active && page.active.list,
      count = list && work.doc[list].length;
    page.mode = null;
    page.view.collapse();
    if (work.step(back)) FG.say(back ? t("Undone.") : t("Redone."), "good");
    if (list && work.doc[list].length !== count) page.active = null; // its number may be that of another entry now
    refresh();
  }

  // Show a document that was changed by a step or in another window.
  function refresh() {
    page.render();
    page.refreshField();
    page.refreshReason();
  }

  function addView(side, node) {
    page.views[side] = new FG.TextView(node, {
      onChange: () => {
        page.use(side);
        moved();
      },
      onTap: tapped,
      onDrag: dragged,
      onHover: (i) => hovered(side, i),
    });
    node.addEventListener("focus", () => {
      if (page.side === side) return;
      page.use(side);
      moved();
    });
  }

  FG.outputSides(schema).forEach((side, i) => addView(side, $(i ? `text-${i}` : "text")));
  if (FG.marksSource(schema)) {
    addView(FG.SOURCE, $("source"));
    const kinds = schema.errors.filter((kind) => FG.kindSide(kind) === FG.SOURCE);
    const names = kinds.map(({ label, key }) => `${label} (${key})`).join(", ");
    $("source-hint").textContent = t("Marked here: {kinds}.", { kinds: names });
  }
  FG.addMarking(page);
  FG.addEvidence(page);
  FG.addSuggesting(page);
  FG.addSeverity(page);
  FG.addReasons(page);
  FG.addAdjudicating(page);
  FG.addNotes((change, key) => {
    work.commit(change(work.doc), key);
    FG.showStatus(work);
  });
  $("text-hint").textContent = FG.hint(schema);
  $("types").replaceChildren(
    ...schema.errors.map((kind) => FG.typeButton(kind, page.pressKind)),
    ...(schema.errors.length ? [FG.keepButton(page)] : []),
  );
  $("missing-types").replaceChildren(...schema.missing.map((kind) => FG.typeButton(kind, page.chooseMissing)));
  $("missing-part").hidden = !schema.missing.length;
  $("correction-part").hidden = !schema.correction;
  $("correction").addEventListener("input", correctionTyped);
  $("reset").addEventListener("click", () => page.change({ "corrected-prediction": text() }));
  $("no-error").addEventListener("change", page.toggleNone);
  $("submit").addEventListener("click", submit);
  document.addEventListener("keydown", altKey);
  // What scrolls into view must not hide behind the bar of kinds.
  new ResizeObserver(([entry]) =>
    document.documentElement.style.setProperty("--bar", `${entry.target.offsetHeight}px`),
  ).observe($("kinds-bar"));
  FG.start("annotation", {
    open,
    fresh: (item) => FG.withSuggestionList(item.row, fresh(item)),
    submit,
    key,
    fieldKey,
    step,
    refresh() {
      page.active = page.mode = null;
      FG.fitSuggestions(work);
      refresh();
    },
    help: (table) => FG.annotationHelp(schema, table),
  });
})();
