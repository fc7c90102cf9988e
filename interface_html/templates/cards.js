// The lists next to the text: a card for each error and each missing item, with its evidence.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = FG.$,
    { t } = FG;
  const short = (text, n) => {
    const points = FG.points(text);
    return points.length > n ? FG.cut(points, 0, n) + "…" : text;
  };

  // The field for the evidence of an entry. Its listeners depend on `list` and `i` only: see FG.morph.
  function evidenceField(page, list, i, entry, label) {
    const { schema } = page,
      { noun } = schema.fields.context,
      sources = FG.sources(schema, page.row),
      key = `${list}-${i}-ids`,
      hintId = `hint-${list}-${i}`,
      text = FG.fieldText(schema, entry),
      ids = FG.readField(schema, text, sources),
      isTyping = document.activeElement && document.activeElement.dataset.key === key,
      isBad = Boolean(ids.problem) && (page.refused === key || !isTyping);
    const how = FG.isTouch
      ? t("Tap sentences, or type {source}:sentences, such as 2:4,5 or 2:4-6", { source: noun })
      : t("Click sentence numbers, or type {source}:sentences, such as 2:4,5 or 2:4-6", { source: noun });
    let hint = how;
    if (isBad) hint = t("“{text}” is not accepted: {reason}.", { text, reason: FG.reason(ids.problem) });
    else if (!ids.problem && ids.sentences.length) hint = short(quoteOf(sources, ids), 140);
    const input = FG.el("input", {
      type: "text",
      "data-key": key,
      autocomplete: "off",
      spellcheck: "false",
      "aria-describedby": hintId,
      "aria-invalid": String(isBad),
      maxlength: "80",
      placeholder: "2:4,5",
      dir: "ltr",
      onfocus: () => page.activate(list, i, true),
      oninput: (event) => page.typeIds(list, i, event.target.value),
      onchange: () => page.commitTyped(list, i),
      onkeydown: (event) => {
        if (event.key !== "Enter" || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        if (!page.commitTyped(list, i)) return;
        const evidence = FG.notation(FG.idsOf(schema, page.doc[list][i]));
        FG.say(evidence ? t("Accepted as evidence: {evidence}.", { evidence }) : "", "good");
        $("text").focus();
      },
    });
    input.value = text;
    return FG.el(
      "div",
      { class: "evidence" },
      FG.el("label", {}, label + " ", input),
      FG.el("span", { id: hintId, class: isBad ? "bad" : "hint", dir: "auto" }, hint),
    );
  }

  function quoteOf(sources, ids) {
    const source = sources[ids.source - 1] || [];
    return ids.sentences.map((sentence) => source[sentence] || "").join(" … ");
  }

  // The name of the button that removes an entry.
  function removal(list, i, kind) {
    if (list !== "errors") return t("Remove missing item {n}", { n: i + 1 });
    return kind.positive ? t("Remove liked span {n}", { n: i + 1 }) : t("Remove error {n}", { n: i + 1 });
  }

  function card(page, list, i, entry, kind, ...body) {
    const active = page.active && page.active.list === list && page.active.index === i;
    return FG.el(
      "li",
      {
        class: active ? "card active" : "card",
        color: kind.color,
        onpointerenter: () => FG.linkEntry(page, list === "errors" ? i : -1),
        onpointerleave: () => FG.linkEntry(page, -1),
        onfocusin: () => FG.linkEntry(page, list === "errors" ? i : -1),
        onfocusout: () => FG.linkEntry(page, -1),
      },
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
          FG.badge(kind, FG.badgeText(kind, i)),
          FG.el("span", { class: "hidden" }, ` ${i + 1}. `),
          " ",
          FG.own(kind.label),
          kind.positive ? FG.el("span", { class: "hint" }, ` ${t("(liked)")}`) : null,
        ),
        list === "errors"
          ? FG.el(
              "button",
              {
                type: "button",
                "data-key": `${list}-${i}-edit`,
                "aria-label": kind.positive
                  ? t("Edit liked span {n}", { n: i + 1 })
                  : t("Edit error {n}", { n: i + 1 }),
                onclick: () => page.edit(i),
              },
              t("Edit"),
            )
          : null,
        FG.el(
          "button",
          {
            type: "button",
            "data-key": `${list}-${i}-remove`,
            "aria-label": removal(list, i, kind),
            onclick: () => page.remove(list, i),
          },
          t("Remove"),
        ),
      ),
      list === "errors" ? FG.severityButtons(page, entry, i) : null,
      ...body,
      list === "errors" ? FG.reasonField(page, entry, i) : null,
    );
  }

  function errorCard(page, error, i) {
    const kind = FG.kind(page.schema, error["error type"]),
      side = FG.sideOf(error),
      points = FG.points(page.row[FG.sideKey(page.schema, side)]);
    const text = FG.el("q", { dir: "auto" }, FG.visible(short(FG.cut(points, error.start, error.end), 160))),
      isOneOfSeveral = page.schema.mark_outputs && side !== FG.SOURCE;
    const quote = isOneOfSeveral
      ? [text, FG.el("p", { class: "hint" }, t("in {text}", { text: page.textName(side) }))]
      : text;
    if (kind.needs === "sentences")
      return card(
        page,
        "errors",
        i,
        error,
        kind,
        quote,
        evidenceField(page, "errors", i, error, t("Contradicts")),
      );
    if (side === FG.SOURCE)
      return card(page, "errors", i, error, kind, quote, FG.el("p", { class: "hint" }, t("in the source")));
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
          ? FG.el("span", { class: "hint", dir: "auto" }, t("repeats “{quote}”", { quote: short(earlier, 120) }))
          : FG.el("span", { class: "bad" }, t("Which earlier text does it repeat?")),
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
                  t("Use the selection"),
                  " ",
                  FG.el("kbd", {}, "Enter"),
                ),
                FG.el(
                  "button",
                  { type: "button", "data-key": `errors-${i}-cancel`, onclick: () => page.leave() },
                  t("Cancel"),
                  " ",
                  FG.el("kbd", {}, "Esc"),
                ),
              ]
            : FG.el(
                "button",
                { type: "button", "data-key": `errors-${i}-choose`, onclick: () => page.earlier(i) },
                earlier ? t("Choose other text") : t("Choose earlier text"),
              ),
        ),
      ),
    );
  }

  // Outline an error in the text and in the list, while the pointer or the focus is on either. -1: none.
  let linked = -1;
  FG.linkEntry = function (page, index) {
    if (linked < 0 && index < 0) return;
    linked = index;
    const error = page.doc.errors[index];
    for (const [side, view] of Object.entries(page.views))
      view.link(error && FG.sideOf(error) === side ? [error.start, error.end] : null);
    [...$("errors").children].forEach((card, i) => card.classList.toggle("linked", Boolean(error) && i === index));
  };

  FG.showCards = function (page) {
    const { doc, schema } = page;
    FG.morph(
      $("errors"),
      doc.errors.map((error, i) => errorCard(page, error, i)),
    );
    FG.morph(
      $("missing"),
      doc["missing-info"].map((info, i) =>
        card(
          page,
          "missing-info",
          i,
          info,
          FG.kind(schema, info["error type"]),
          evidenceField(page, "missing-info", i, info, t("Found in")),
        ),
      ),
    );
    const count = FG.errorsOf(schema, doc).length,
      liked = doc.errors.length - count;
    $("error-count").textContent = FG.likedKinds(schema).length ? t("{n}, {liked} liked", { n: count, liked }) : String(count);
    $("missing-count").textContent = String(doc["missing-info"].length);
    const target = page.target(),
      ids = target && FG.readField(schema, FG.fieldText(schema, target), FG.sources(schema, page.row));
    for (const node of document.querySelectorAll("[data-sentence]")) {
      const [source, sentence] = node.dataset.sentence.split(":").map(Number);
      const on = Boolean(ids && !ids.problem && ids.source === source && ids.sentences.includes(sentence));
      node.setAttribute("aria-pressed", String(on));
      node.parentElement.querySelector(".sentence").classList.toggle("chosen", on);
    }
    $("sources").classList.toggle("picking", Boolean(target));
  };
})(window.FG);
