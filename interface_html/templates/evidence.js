// Evidence: the sentences that an error contradicts or that hold missing information. They are typed or clicked.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = FG.$,
    { t } = FG;
  const HEADINGS = 80; // pixels: the sticky headings of the sources
  const NARROW = window.matchMedia("(max-width: 49.99rem)"); // as in page.css: sources are above the text

  // Sentences as they are typed and shown: 2:4,5
  FG.notation = (ids) => (ids && ids.sentences.length ? `${ids.source}:${ids.sentences.join(",")}` : "");

  // The sentences that an entry refers to; {source: 0, sentences: []} if there are none yet.
  FG.idsOf = function (schema, entry) {
    const ids =
      "explanation" in entry ? FG.evidence(schema, entry.explanation) : FG.missingIds(schema, entry);
    return ids || { source: 0, sentences: [] };
  };

  // The entry with these sentences as evidence, and without typed text.
  FG.withIds = function (schema, entry, ids) {
    const { typed, ...rest } = entry,
      some = ids.sentences.length > 0;
    if ("explanation" in rest) return { ...rest, explanation: some ? FG.evidenceText(schema, ids) : "" };
    return { ...rest, ...FG.storedIds(schema, { ...ids, source: some ? ids.source : 0 }) };
  };

  // The text in the evidence field of an entry.
  FG.fieldText = (schema, entry) => ("typed" in entry ? entry.typed : FG.notation(FG.idsOf(schema, entry)));

  // The sentences of the field's text, {source, sentences}, or {problem}.
  FG.readField = function (schema, text, sources) {
    return text.trim() ? FG.parseEvidence(schema, text, sources) : { source: 0, sentences: [] };
  };

  const fieldKey = (list, i) => `${list}-${i}-ids`;
  const fieldOf = (list, i) => document.querySelector(`[data-key="${fieldKey(list, i)}"]`);

  FG.addEvidence = function (page) {
    const { schema, refuse } = page,
      empty = { source: 0, sentences: [] };
    const needsSentences = (entry) =>
      !("explanation" in entry) || FG.kind(schema, entry["error type"]).needs === "sentences";
    const replace = (list, i, entry, key) =>
      page.change({ [list]: FG.replaced(page.doc[list], i, entry) }, key);

    page.chooseMissing = function (kind) {
      if (page.doc["no-error"])
        return refuse(t("Not added: “No error, nothing missing” is ticked. Untick it first."));
      if (!FG.sources(schema, page.row).length)
        return refuse(
          t("Not added: this item has no {source} that could hold what is missing.", {
            source: schema.fields.context.noun,
          }),
        );
      const info = { "error type": kind.name, ...FG.storedIds(schema, empty) },
        missing = [...page.doc["missing-info"], info];
      page.leave();
      page.active = { list: "missing-info", index: missing.length - 1 };
      page.change({ "missing-info": missing });
      page.askEvidence("missing-info", missing.length - 1);
      const done = FG.isTouch
        ? t("Added: {kind}. Now tap the sentences that hold it.", { kind: kind.label })
        : t("Added: {kind}. Now type 2:4,5, or click the numbers of the sentences that hold it.", {
            kind: kind.label,
          });
      FG.say(done, "good");
      return true;
    };

    // Go to the evidence of an entry: its field, or on a phone the sheet with the sentences, without a keyboard.
    page.askEvidence = function (list, i) {
      page.active = { list, index: i };
      page.sheet = NARROW.matches;
      FG.hideSources(false);
      page.render();
      if (!FG.isTouch && fieldOf(list, i)) fieldOf(list, i).focus();
    };

    // ---- typed text -----------------------------------------------------------------------------------------
    // While evidence is typed, the entry has no sentences: a prefix of a number is another number.
    page.typeIds = function (list, i, text) {
      const cleared = FG.withIds(schema, page.doc[list][i], empty);
      page.refused = null;
      replace(list, i, { ...cleared, typed: text }, fieldKey(list, i));
      const ids = FG.readField(schema, text, FG.sources(schema, page.row));
      if (!ids.problem) showSentence(ids);
    };

    // Make the typed text the evidence. Returns false, with the reason on the page, if it is not accepted.
    page.commitTyped = function (list, i) {
      const entry = page.doc[list][i];
      if (!entry || !("typed" in entry)) return true;
      const ids = FG.readField(schema, entry.typed, FG.sources(schema, page.row));
      page.refused = ids.problem ? fieldKey(list, i) : null;
      if (ids.problem) {
        page.render();
        return refuse(
          t("“{text}” is not accepted: {reason}.", { text: entry.typed, reason: FG.reason(ids.problem) }),
        );
      }
      replace(list, i, FG.withIds(schema, entry, ids), fieldKey(list, i));
      const field = fieldOf(list, i);
      if (field) field.value = FG.notation(ids);
      showSentence(ids);
      return true;
    };

    page.commitAllTyped = function () {
      for (const list of ["errors", "missing-info"])
        page.doc[list].forEach((entry, i) => page.commitTyped(list, i));
    };

    // After undo the field that has focus shows the document again.
    page.refreshField = function () {
      const field = document.activeElement,
        [, list, i] = /^(errors|missing-info)-(\d+)-ids$/.exec((field && field.dataset.key) || "") || [];
      if (list) field.value = FG.fieldText(schema, page.doc[list][Number(i)]);
    };

    // ---- clicked sentences ------------------------------------------------------------------------------------
    // The entry that clicked sentences are added to: the active error that needs evidence, or the active missing item.
    page.target = function () {
      const { active } = page,
        entry = active && page.doc[active.list][active.index];
      return entry && needsSentences(entry) ? entry : null;
    };

    page.pickSentence = function (source, sentence) {
      const target = page.target(),
        noun = schema.fields.context.noun;
      if (!target)
        return refuse(
          t("Sentence not used: first choose an error or a missing item that needs sentences as evidence."),
        );
      const ids = FG.idsOf(schema, target),
        { list, index } = page.active;
      if (ids.sentences.length && ids.source !== source)
        return refuse(
          t(
            "Sentence {id} not added: the evidence is in {source} {n}, and an entry can point to one {source} only. Remove {evidence} first, or add another entry.",
            {
              id: `${source}:${sentence}`,
              source: noun,
              n: ids.source,
              evidence: FG.notation(ids),
            },
          ),
        );
      const has = ids.sentences.includes(sentence);
      const sentences = has
        ? ids.sentences.filter((other) => other !== sentence)
        : [...ids.sentences, sentence].sort((a, b) => a - b);
      page.refused = null;
      replace(list, index, FG.withIds(schema, target, { source, sentences }));
      page.refreshField();
      const id = `${source}:${sentence}`;
      FG.say(has ? t("Sentence {id} removed.", { id }) : t("Sentence {id} added.", { id }), "good");
      return true;
    };
  };

  // Scroll the first of the sentences into view. Only the sources move, if they are on the screen.
  function showSentence(ids) {
    const id = `${ids.source}:${ids.sentences[0]}`,
      node = ids.sentences.length && document.querySelector(`[data-sentence-text="${id}"]`);
    if (!node) return;
    const panel = $("sources"),
      frame = panel.getBoundingClientRect(),
      box = node.getBoundingClientRect(),
      top = Math.max(frame.top, 0) + HEADINGS,
      bottom = Math.min(frame.bottom, window.innerHeight);
    if (bottom - top < HEADINGS) node.scrollIntoView({ block: "nearest" });
    else if (box.top < top) panel.scrollTop -= top - box.top;
    else if (box.bottom > bottom) panel.scrollTop += Math.min(box.bottom - bottom, box.top - top);
  }

  // ---- the sheet: on a narrow screen, the sources come up from below while evidence is chosen ------------------
  FG.addSheet = function (page) {
    if ($("sheet-head")) return;
    const done = FG.el(
      "button",
      { type: "button", id: "sheet-done", class: "main", onclick: () => closeSheet(page) },
      t("Done"),
    );
    const head = FG.el(
      "div",
      { id: "sheet-head", hidden: true },
      FG.el("span", { id: "sheet-title", role: "status" }),
      done,
    );
    $("sources").prepend(head);
    // A tap elsewhere closes it, but not the tap that opened it.
    let wasOpen = false;
    document.addEventListener("pointerdown", () => {
      wasOpen = Boolean(page.sheet);
    });
    document.addEventListener("click", (event) => {
      const isOutside = !event.target.closest("#sources, #marked");
      if (page.sheet && wasOpen && isOutside) closeSheet(page);
    });
  };

  function closeSheet(page) {
    page.sheet = false;
    page.render();
    const { view } = page;
    if (view.cursor >= 0) view.spans[view.cursor].scrollIntoView({ block: "nearest" });
  }

  FG.showSheet = function (page) {
    const head = $("sheet-head");
    if (!head) return;
    const target = page.target(),
      isOpen = Boolean(page.sheet && target && NARROW.matches);
    if (isOpen) {
      const kind = FG.kind(page.schema, target["error type"]),
        ids = FG.notation(FG.idsOf(page.schema, target));
      $("sheet-title").textContent = ids
        ? t("{kind}: {evidence}", { kind: kind.label, evidence: ids })
        : t("{kind}: tap the sentences", { kind: kind.label });
    }
    if (head.hidden === !isOpen) return;
    const top = $("text").getBoundingClientRect().top;
    head.hidden = !isOpen;
    $("sources").classList.toggle("sheet", isOpen);
    // The sources leave their place above the text, or return to it: the text stays where it is.
    window.scrollBy(0, $("text").getBoundingClientRect().top - top);
  };
})(window.FG);
