// The lists next to the text: a card for each error and each missing item, with its evidence.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = FG.$;
  const short = (text, n) => {
    const points = FG.points(text);
    return points.length > n ? FG.cut(points, 0, n) + "…" : text;
  };

  // Sentences as they are typed and shown: 2:4,5
  FG.notation = (ids) => (ids && ids.sentences.length ? `${ids.source}:${ids.sentences.join(",")}` : "");

  // The sentences that an entry refers to; {source: 0, sentences: []} if there are none yet.
  FG.idsOf = function (schema, entry) {
    const ids =
      "explanation" in entry ? FG.evidence(schema, entry.explanation) : FG.missingIds(schema, entry);
    return ids || { source: 0, sentences: [] };
  };

  FG.withIds = function (schema, entry, ids) {
    const some = ids.sentences.length > 0;
    if ("explanation" in entry)
      return { ...entry, explanation: some ? FG.evidenceText(schema, ids) : "" };
    return { ...entry, ...FG.storedIds(schema, { ...ids, source: some ? ids.source : 0 }) };
  };

  // page: {schema, row, doc, active, mode, setIds(list, i, ids), activate(list, i), edit(i), remove(list, i), earlier(i)}.
  function evidenceField(page, list, i, entry, label) {
    const { schema } = page,
      sources = FG.sources(schema, page.row),
      ids = FG.idsOf(schema, entry),
      hintId = `hint-${list}-${i}`;
    const source = sources[ids.source - 1] || [],
      quote = ids.sentences.map((sentence) => source[sentence] || "").join(" … ");
    const hint = FG.el(
      "span",
      { id: hintId, class: "hint", dir: "auto" },
      quote
        ? short(quote, 140)
        : `Click sentence numbers, or type ${schema.fields.context.noun}:sentences, such as 2:4,5`,
    );
    const input = FG.el("input", {
      type: "text",
      "data-key": `${list}-${i}-ids`,
      autocomplete: "off",
      spellcheck: "false",
      "aria-describedby": hintId,
      maxlength: "80",
      placeholder: "2:4,5",
      onfocus: () => page.activate(list, i, true),
      oninput: (event) => {
        const text = event.target.value,
          typed = text.trim() ? FG.parseEvidence(schema, text, sources) : { source: 0, sentences: [] };
        if (!typed.problem) page.setIds(list, i, typed, `${list}-${i}-ids`);
      },
      onchange: (event) => refuse(schema, event.target, sources, hint),
      onkeydown: (event) => {
        if (event.key !== "Enter" || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        if (!refuse(schema, event.target, sources, hint)) {
          FG.say("");
          $("text").focus();
        }
      },
    });
    input.value = FG.notation(ids);
    return FG.el("div", { class: "evidence" }, FG.el("label", {}, label + " ", input), hint);
  }

  // Show the problem of typed evidence, if there is one. Returns the problem, or null.
  function refuse(schema, input, sources, hint) {
    const text = input.value.trim(),
      problem = text ? FG.parseEvidence(schema, text, sources).problem : null;
    input.setAttribute("aria-invalid", problem ? "true" : "false");
    if (problem) {
      hint.textContent = `“${text}” is not accepted: ${problem}.`;
      hint.className = "bad";
      FG.say(hint.textContent, "bad");
    }
    return problem;
  }

  function card(page, list, i, entry, kind, ...body) {
    const active = page.active && page.active.list === list && page.active.index === i;
    return FG.el(
      "li",
      { class: active ? "card active" : "card", color: kind.color },
      FG.el(
        "div",
        { class: "row" },
        FG.el(
          "button",
          {
            type: "button",
            class: "cardtitle",
            "data-key": `${list}-${i}`,
            "aria-current": active ? "true" : null,
            onclick: () => page.activate(list, i),
          },
          FG.badge(kind),
          ` ${i + 1}. ${kind.label}`,
        ),
        list === "errors"
          ? FG.el(
              "button",
              {
                type: "button",
                "data-key": `${list}-${i}-edit`,
                "aria-label": `Edit error ${i + 1}`,
                onclick: () => page.edit(i),
              },
              "Edit",
            )
          : null,
        FG.el(
          "button",
          {
            type: "button",
            "data-key": `${list}-${i}-remove`,
            "aria-label": `Remove ${list === "errors" ? "error" : "missing item"} ${i + 1}`,
            onclick: () => page.remove(list, i),
          },
          "Remove",
        ),
      ),
      ...body,
    );
  }

  function errorCard(page, error, i) {
    const kind = FG.kind(page.schema, error["error type"]),
      points = FG.points(page.row[FG.textKey(page.schema)]);
    const quote = FG.el("q", { dir: "auto" }, short(FG.cut(points, error.start, error.end), 160));
    if (kind.needs === "sentences")
      return card(
        page,
        "errors",
        i,
        error,
        kind,
        quote,
        evidenceField(page, "errors", i, error, "Contradicts"),
      );
    if (kind.needs === "nothing") return card(page, "errors", i, error, kind, quote);
    const choosing = page.mode === "earlier" && page.active && page.active.index === i;
    const earlier = FG.strip(error.explanation);
    return card(
      page,
      "errors",
      i,
      error,
      kind,
      quote,
      FG.el(
        "div",
        { class: "evidence" },
        earlier
          ? FG.el("span", { class: "hint", dir: "auto" }, `repeats “${short(earlier, 120)}”`)
          : FG.el("span", { class: "bad" }, "Which earlier text does it repeat?"),
        FG.el(
          "div",
          { class: "row" },
          choosing
            ? [
                FG.el(
                  "button",
                  {
                    type: "button",
                    class: "main",
                    "data-key": `errors-${i}-use`,
                    onclick: () => page.useEarlier(),
                  },
                  "Use the selection ",
                  FG.el("kbd", {}, "Enter"),
                ),
                FG.el(
                  "button",
                  { type: "button", "data-key": `errors-${i}-cancel`, onclick: () => page.leave() },
                  "Cancel ",
                  FG.el("kbd", {}, "Esc"),
                ),
              ]
            : FG.el(
                "button",
                { type: "button", "data-key": `errors-${i}-choose`, onclick: () => page.earlier(i) },
                earlier ? "Choose other text" : "Choose earlier text",
              ),
        ),
      ),
    );
  }

  FG.showCards = function (page) {
    const { doc, schema } = page;
    FG.refill(
      $("errors"),
      doc.errors.map((error, i) => errorCard(page, error, i)),
    );
    FG.refill(
      $("missing"),
      doc["missing-info"].map((info, i) =>
        card(
          page,
          "missing-info",
          i,
          info,
          FG.kind(schema, info["error type"]),
          evidenceField(page, "missing-info", i, info, "Found in"),
        ),
      ),
    );
    $("error-count").textContent = String(doc.errors.length);
    $("missing-count").textContent = String(doc["missing-info"].length);
    const target = page.target(),
      ids = target && FG.idsOf(schema, target);
    for (const node of document.querySelectorAll("[data-sentence]")) {
      const [source, sentence] = node.dataset.sentence.split(":").map(Number);
      const on = Boolean(ids && ids.source === source && ids.sentences.includes(sentence));
      node.setAttribute("aria-pressed", String(on));
      node.parentElement.querySelector(".sentence").classList.toggle("chosen", on);
    }
    $("sources").classList.toggle("picking", Boolean(target));
  };
})(window.FG);
