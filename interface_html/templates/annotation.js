// The annotation page: errors in a text, missing information, and the corrected text.
"use strict";
(function () {
  const FG = window.FG,
    $ = FG.$,
    schema = window.FG_SCHEMA;
  const NOUN = schema.fields.noun;
  const HINT = `Drag over ${schema.unit}s, or tap the first and the last one, or use the arrow keys with Shift. Then choose a kind.`;
  let view = null,
    work = null;
  const page = {
    schema,
    active: null,
    mode: null,
    get doc() {
      return work.doc;
    },
    get row() {
      return work.item.row;
    },
  };
  const text = () => page.row[FG.textKey(schema)];
  const labelOf = (i) => `error ${i + 1} (${FG.kind(schema, work.doc.errors[i]["error type"]).label})`;
  page.labelOf = labelOf;
  const replaced = (list, i, entry) => list.map((old, k) => (k === i ? entry : old));

  // The document of an item without work on it: empty, or the feedback in its file.
  function fresh(item) {
    const { feedback } = item.row,
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
      "no-error": !feedback.errors.length && !feedback["missing-info"].length,
    };
  }

  // ---- changes: each makes a new document --------------------------------------------------------------------
  function change(parts, key) {
    work.commit({ ...work.doc, ...parts }, key);
    render();
  }

  const refuse = (reason) => {
    FG.say(reason, "bad");
    return false;
  };

  // Whether the range may be marked as `kind`. It must not overlap an error, except the one with index `except`.
  function mayMark(range, kind, except) {
    if (work.doc["no-error"]) return refuse("Not marked: “No error” is ticked. Untick it first (N).");
    if (!range) return refuse(`Not marked: nothing is selected. ${HINT}`);
    const other = FG.overlapOf(work.doc.errors, range[0], range[1], except);
    if (other >= 0) {
      if (except === undefined) page.active = { list: "errors", index: other };
      render();
      return refuse(
        `Not marked: the selection overlaps ${labelOf(other)}. Edit it (E) or remove it (Del) first.`,
      );
    }
    if (kind.needs === "earlier text" && !FG.strip(FG.cut(view.points, 0, range[0]))) {
      return refuse(
        "Not marked: there is no text before the selection that it could repeat. Choose another kind.",
      );
    }
    return true;
  }

  function chooseError(kind) {
    if (page.mode === "earlier")
      return refuse("Select the earlier text first and press Enter, or press Esc to cancel.");
    const editing = page.mode === "span" ? page.active.index : undefined,
      range = view.range;
    if (!mayMark(range, kind, editing)) return false;
    const old = editing === undefined ? null : work.doc.errors[editing];
    const keeps = old && old["error type"] === kind.name;
    const error = {
      "error type": kind.name,
      explanation: keeps ? old.explanation : "",
      start: range[0],
      end: range[1],
    };
    const errors = old ? replaced(work.doc.errors, editing, error) : [...work.doc.errors, error];
    const index = old ? editing : errors.length - 1;
    page.active = { list: "errors", index };
    page.mode = null;
    view.collapse();
    change({ errors });
    FG.say(`${old ? "Changed" : "Marked"}: ${labelOf(index)}.`, "good");
    if (!keeps && kind.needs === "sentences") focusEvidence("errors", index);
    if (!keeps && kind.needs === "earlier text") page.earlier(index);
    return true;
  }

  function chooseMissing(kind) {
    if (work.doc["no-error"])
      return refuse("Not added: “No error, nothing missing” is ticked. Untick it first (N).");
    if (!FG.sources(schema, page.row).length)
      return refuse(
        `Not added: this item has no ${schema.fields.context.noun} that could hold what is missing.`,
      );
    const ids = FG.storedIds(schema, { source: 0, sentences: [] });
    const missing = [...work.doc["missing-info"], { "error type": kind.name, ...ids }];
    page.leave();
    page.active = { list: "missing-info", index: missing.length - 1 };
    change({ "missing-info": missing });
    focusEvidence("missing-info", missing.length - 1);
    FG.say(`${kind.label}: type the sentences that hold it, such as 2:4,5, or click their numbers.`);
    return true;
  }

  function focusEvidence(list, i) {
    const field = document.querySelector(`[data-key="${list}-${i}-ids"]`);
    if (field) field.focus();
    FG.say("Type the sentences, such as 2:4,5, or click their numbers. Press Enter when done.");
  }

  page.setIds = function (list, i, ids, key) {
    change({ [list]: replaced(work.doc[list], i, FG.withIds(schema, work.doc[list][i], ids)) }, key);
  };

  // The entry that clicked sentences are added to: the active error that needs evidence, or the active missing item.
  page.target = function () {
    const { active } = page,
      entry = active && work.doc[active.list][active.index];
    return entry &&
      (active.list === "missing-info" || FG.kind(schema, entry["error type"]).needs === "sentences")
      ? entry
      : null;
  };

  function pickSentence(source, sentence) {
    const target = page.target(),
      noun = schema.fields.context.noun;
    if (!target)
      return refuse(
        "Sentence not used: first choose an error or a missing item that needs sentences as evidence.",
      );
    const ids = FG.idsOf(schema, target),
      { list, index } = page.active;
    if (ids.sentences.length && ids.source !== source) {
      return refuse(
        `Sentence ${source}:${sentence} not added: the evidence is in ${noun} ${ids.source}, and an entry can point to one ${noun} only. Remove ${FG.notation(ids)} first, or add another entry.`,
      );
    }
    const has = ids.sentences.includes(sentence);
    const sentences = has
      ? ids.sentences.filter((other) => other !== sentence)
      : [...ids.sentences, sentence].sort((a, b) => a - b);
    const field = document.querySelector(`[data-key="${list}-${index}-ids"]`);
    page.setIds(list, index, { source, sentences });
    if (document.activeElement && document.activeElement.dataset.key === field.dataset.key)
      document.activeElement.value = FG.notation({ source, sentences });
    FG.say(`Sentence ${source}:${sentence} ${has ? "removed" : "added"}.`, "good");
    return true;
  }

  page.activate = function (list, index, quiet) {
    if (page.active && page.active.list === list && page.active.index === index && quiet) return;
    page.mode = null;
    page.active = { list, index };
    if (list === "errors" && !quiet) {
      view.collapse();
      view.cursor = view.units.findIndex((unit) => unit[1] > work.doc.errors[index].start);
      view.spans[view.cursor].scrollIntoView({ block: "nearest" });
    }
    render();
  };

  page.edit = function (index) {
    const error = work.doc.errors[index];
    page.active = { list: "errors", index };
    page.mode = "span";
    view.select(error.start, error.end);
    $("text").focus();
    FG.say(
      `Editing ${labelOf(index)}: select other ${schema.unit}s and press Enter, or choose another kind. Esc cancels.`,
    );
  };

  page.remove = function (list, index) {
    const name = list === "errors" ? labelOf(index) : `missing item ${index + 1}`;
    page.active = page.mode = null;
    view.collapse();
    change({ [list]: work.doc[list].filter((_, k) => k !== index) });
    $("text").focus({ preventScroll: true });
    page.active = null;
    render();
    FG.say(`Removed: ${name}. Ctrl+Z restores it.`, "good");
  };

  page.earlier = function (index) {
    page.active = { list: "errors", index };
    page.mode = "earlier";
    view.collapse();
    view.cursor = 0;
    $("text").focus();
    render();
    FG.say(`Select the earlier text that ${labelOf(index)} repeats, then press Enter. Esc cancels.`);
  };

  page.useEarlier = function () {
    const range = view.range,
      { index } = page.active,
      error = work.doc.errors[index];
    if (!range) return refuse("Nothing is selected: select the earlier text.");
    if (range[1] > error.start)
      return refuse(`Not accepted: the earlier text must come before ${labelOf(index)}, which repeats it.`);
    page.mode = null;
    view.collapse();
    change({
      errors: replaced(work.doc.errors, index, {
        ...error,
        explanation: FG.cut(view.points, range[0], range[1]),
      }),
    });
    FG.say(
      `Accepted: ${labelOf(index)} repeats “${FG.cut(view.points, range[0], Math.min(range[1], range[0] + 60))}”.`,
      "good",
    );
    return true;
  };

  page.leave = function () {
    if (page.mode) FG.say("");
    page.mode = null;
    view.collapse();
    render();
  };

  function toggleNone() {
    const count = work.doc.errors.length + work.doc["missing-info"].length;
    if (!work.doc["no-error"] && count)
      refuse(`“No error” cannot be ticked: ${FG.countMarks(count)} marked. Remove what is marked first.`);
    else change({ "no-error": !work.doc["no-error"] });
    render();
  }

  // ---- rendering ----------------------------------------------------------------------------------------------
  function render() {
    const doc = work.doc,
      { active } = page;
    if (active && !work.doc[active.list][active.index]) page.active = null;
    const current = page.active && page.active.list === "errors" ? page.active.index : -1;
    view.paint(
      doc.errors.map((error, i) => ({
        ...error,
        kind: FG.kind(schema, error["error type"]),
        active: i === current,
      })),
      FG.earlierRange(schema, view.points, doc.errors[current]),
    );
    FG.showCards(page);
    $("no-error").checked = doc["no-error"];
    const shown = doc["corrected-prediction"].replace(/\r\n?/g, "\n");
    if ($("correction").value !== shown) $("correction").value = shown;
    if (schema.correction) FG.showDiff(page);
    FG.showStatus(work);
  }

  // ---- submitting --------------------------------------------------------------------------------------------
  async function submit() {
    const problems = FG.annotationProblems(schema, page.row, work.doc).map((problem) =>
      FG.explained(page, problem),
    );
    FG.showProblems(problems);
    if (problems.length) {
      FG.say(`Not submitted: ${problems[0].text}`, "bad");
      problems[0].go();
      return;
    }
    const isStored = await work.submit();
    FG.showStatus(work);
    if (isStored) FG.afterSubmit();
  }

  // ---- keys --------------------------------------------------------------------------------------------------
  function key(event) {
    const kind = [...schema.errors, ...schema.missing].find((other) => other.key === event.key);
    const { active } = page,
      letter = event.key.toLowerCase();
    const done = () => event.preventDefault();
    if (kind) {
      done();
      ("needs" in kind ? chooseError : chooseMissing)(kind);
      return;
    }
    if (event.key === "Escape") {
      done();
      page.leave();
      $("text").focus();
      if (view.cursor < 0) view.move(0, false);
      return;
    }
    if (event.key === "Enter" && page.mode && !event.target.closest("button")) {
      done();
      confirm();
      return;
    }
    if (letter === "n") {
      done();
      toggleNone();
      return;
    }
    if (letter === "e") {
      done();
      if (active && active.list === "errors") page.edit(active.index);
      else if (active) focusEvidence(active.list, active.index);
      else refuse(`Nothing to edit: move to an error first, in the ${NOUN} or in the list.`);
    }
    if (event.key === "Delete" || event.key === "Backspace") {
      done();
      if (active) page.remove(active.list, active.index);
      else refuse(`Nothing to remove: move to an error first, in the ${NOUN} or in the list.`);
    }
  }

  function confirm() {
    if (page.mode === "earlier") page.useEarlier();
    else chooseError(FG.kind(schema, work.doc.errors[page.active.index]["error type"]));
  }

  function fieldKey(event) {
    if (event.key === "Escape") {
      event.preventDefault();
      $("text").focus();
    }
  }

  function moved() {
    if (!page.mode) {
      const range = view.range;
      const at = range && view.anchor === null ? FG.overlapOf(work.doc.errors, range[0], range[1]) : -1;
      if (at >= 0) page.active = { list: "errors", index: at };
      else if (page.active && page.active.list === "errors") page.active = null;
    }
    render();
  }

  function tapped(i) {
    const at = page.mode ? -1 : FG.overlapOf(work.doc.errors, view.units[i][0], view.units[i][1]);
    if (at < 0) return;
    page.activate("errors", at);
    FG.say(`${labelOf(at)[0].toUpperCase()}${labelOf(at).slice(1)}. E edits, Del removes.`);
  }

  function open(next) {
    work = next;
    page.active = page.mode = null;
    FG.showTexts(schema, page.row, schema.fields.context ? pickSentence : null);
    view.show(schema, text());
    $("correction").value = "";
    render();
    $("text").focus({ preventScroll: true });
    view.cursor = -1;
    render();
  }

  view = new FG.TextView($("text"), moved, tapped, () => {
    if (page.mode === "earlier") page.useEarlier();
  });
  $("text-hint").textContent = HINT;
  $("types").replaceChildren(...schema.errors.map((kind) => FG.typeButton(kind, chooseError)));
  $("missing-types").replaceChildren(...schema.missing.map((kind) => FG.typeButton(kind, chooseMissing)));
  $("missing-part").hidden = !schema.missing.length;
  $("correction-part").hidden = !schema.correction;
  $("correction").addEventListener("input", (event) =>
    change({ "corrected-prediction": FG.fromField(event.target.value, text()) }, "correction"),
  );
  $("reset").addEventListener("click", () => change({ "corrected-prediction": text() }));
  $("no-error").addEventListener("change", toggleNone);
  $("submit").addEventListener("click", submit);
  FG.start("annotation", {
    open,
    fresh,
    submit,
    key,
    fieldKey,
    help: (table) => FG.annotationHelp(schema, table),
    step: (back) => {
      page.mode = null;
      view.collapse();
      if (work.step(back)) FG.say(back ? "Undone." : "Redone.", "good");
      render();
    },
  });
})();
