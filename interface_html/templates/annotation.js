// The annotation page: marks errors in an answer, missing information, and the corrected answer.
"use strict";
(function () {
  const FG = window.FG,
    $ = FG.$,
    schema = window.FG_SCHEMA;
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
  const text = () => page.row[schema.fields.text];
  const labelOf = (i) => `error ${i + 1} (${FG.kind(schema, work.doc.errors[i]["error type"]).label})`;
  page.labelOf = labelOf;
  const replaced = (list, i, entry) => list.map((old, k) => (k === i ? entry : old));

  function fresh(item) {
    const said = item.row.feedback,
      original = item.row[schema.fields.text];
    if (!said)
      return {
        errors: [],
        "missing-info": [],
        "corrected-prediction": schema.correction ? original : "",
        "no-error": false,
      };
    const none = !said.errors.length && !said["missing-info"].length;
    return {
      errors: FG.clone(said.errors),
      "missing-info": FG.clone(said["missing-info"]),
      "corrected-prediction": said["corrected-prediction"],
      "no-error": none,
    };
  }

  // ---- changes: each is one new document ---------------------------------------------------------------------
  function change(parts, key) {
    work.commit({ ...work.doc, ...parts }, key);
    render();
  }

  const refuse = (why) => {
    FG.say(why, "bad");
    return false;
  };

  // Whether something may be marked now, as `kind` and not overlapping another error than `except`.
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
        `Not marked: nothing stands before the selection, so it repeats nothing. Choose another kind.`,
      );
    }
    return true;
  }

  function chooseError(kind) {
    if (page.mode === "earlier")
      return refuse("First choose the earlier text and press Enter, or press Esc.");
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
    if (!FG.passages(schema, page.row).length)
      return refuse("Not added: this item has no passages that could say what is missing.");
    const missing = [
      ...work.doc["missing-info"],
      { "error type": kind.name, passage_id: 0, sentence_id: [] },
    ];
    page.leave();
    page.active = { list: "missing-info", index: missing.length - 1 };
    change({ "missing-info": missing });
    focusEvidence("missing-info", missing.length - 1);
    FG.say(`${kind.label}: type the sentences that say it, such as 2:4,5, or click their numbers.`);
    return true;
  }

  function focusEvidence(list, i) {
    const field = document.querySelector(`[data-key="${list}-${i}-ids"]`);
    if (field) field.focus();
    FG.say("Type the sentences, such as 2:4,5, or click their numbers. Enter when done.");
  }

  page.setIds = function (list, i, ids, key) {
    change({ [list]: replaced(work.doc[list], i, FG.withIds(work.doc[list][i], ids)) }, key);
  };

  // What clicked sentences are evidence of: the active error that needs some, or the active missing item.
  page.target = function () {
    const { active } = page,
      entry = active && work.doc[active.list][active.index];
    return entry &&
      (active.list === "missing-info" || FG.kind(schema, entry["error type"]).needs === "sentences")
      ? entry
      : null;
  };

  function pickSentence(p, s) {
    const target = page.target();
    if (!target)
      return refuse(
        "Sentence not used: choose first what it is evidence of, an error that contradicts the passages or a missing item.",
      );
    const ids = FG.idsOf(target),
      { list, index } = page.active;
    if (ids.sentence_id.length && ids.passage_id !== p) {
      return refuse(
        `Sentence ${p}:${s} not added: the evidence is in passage ${ids.passage_id}, and one item points to one passage. Take ${FG.notation(ids)} away first, or add another item.`,
      );
    }
    const has = ids.sentence_id.includes(s);
    const sentence_id = has
      ? ids.sentence_id.filter((id) => id !== s)
      : [...ids.sentence_id, s].sort((a, b) => a - b);
    const field = document.querySelector(`[data-key="${list}-${index}-ids"]`);
    page.setIds(list, index, { passage_id: p, sentence_id });
    if (document.activeElement && document.activeElement.dataset.key === field.dataset.key)
      document.activeElement.value = FG.notation({ passage_id: p, sentence_id });
    FG.say(`Sentence ${p}:${s} ${has ? "taken away" : "added"}.`, "good");
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
      `Editing ${labelOf(index)}: select other words and press Enter, or choose another kind. Esc leaves it as it is.`,
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
    FG.say(`Removed: ${name}. Ctrl+Z brings it back.`, "good");
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
      return refuse(`Not taken: the earlier text must stand before ${labelOf(index)}, which it repeats.`);
    page.mode = null;
    view.collapse();
    change({
      errors: replaced(work.doc.errors, index, {
        ...error,
        explanation: FG.cut(view.points, range[0], range[1]),
      }),
    });
    FG.say(
      `Taken: ${labelOf(index)} repeats “${FG.cut(view.points, range[0], Math.min(range[1], range[0] + 60))}”.`,
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
    const marked = work.doc.errors.length + work.doc["missing-info"].length;
    if (!work.doc["no-error"] && marked) {
      refuse(
        `“No error” is not ticked: ${marked} error${marked > 1 ? "s or missing items are" : " or missing item is"} marked. Remove ${marked > 1 ? "them" : "it"} first.`,
      );
    } else change({ "no-error": !work.doc["no-error"] });
    render();
  }

  // ---- what is seen ------------------------------------------------------------------------------------------
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
    const wrong = FG.annotationProblems(schema, page.row, work.doc).map((one) => FG.explained(page, one));
    FG.showProblems(wrong);
    if (wrong.length) {
      FG.say(`Not submitted: ${wrong[0].text}`, "bad");
      wrong[0].go();
      return;
    }
    const kept = await work.submit();
    FG.showStatus(work);
    if (kept) FG.afterSubmit();
  }

  // ---- keys --------------------------------------------------------------------------------------------------
  function key(event) {
    const kind = [...schema.errors, ...schema.missing].find((one) => one.key === event.key);
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
      else refuse("Nothing to edit: move to an error first, in the answer or in the list.");
    }
    if (event.key === "Delete" || event.key === "Backspace") {
      done();
      if (active) page.remove(active.list, active.index);
      else refuse("Nothing to remove: move to an error first, in the answer or in the list.");
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
    FG.showSources(schema, page.row, schema.fields.passages ? pickSentence : null);
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
