// On the lead's page: the judged items by agreement, and the texts of one with everybody's judgements, to read only.
"use strict";
(function (FG) {
  const { $, el, t } = FG;
  const PAGES = { annotation: t("annotation"), comparison: t("comparison"), rating: t("rating") };
  let items = [];

  // A text with the marks of an annotator in it. A character has the colour of the shortest mark on it.
  function marked(text, marks) {
    const points = FG.points(text),
      bounds = [0, points.length, ...marks.flatMap(({ start, end }) => [start, end])],
      places = [...new Set(bounds)].filter((at) => at <= points.length).sort((a, b) => a - b);
    return places.slice(0, -1).map((from, i) => {
      const to = places[i + 1],
        on = marks.filter(({ start, end }) => start < to && from < end).sort((a, b) => a.end - a.start - (b.end - b.start)),
        tags = marks.filter(({ start }) => start === from).map(({ letter, color }) => el("i", { class: "tag", "data-badge": letter, color, "aria-hidden": "true" })),
        piece = FG.visible(FG.cut(points, from, to));
      return on.length ? el("span", { class: "w marked", color: on[0].color, title: on.map(nameOf).join("; ") }, tags, piece) : el("span", {}, piece);
    });
  }

  const nameOf = ({ label, severity, reason }) => [label, severity, reason].filter(Boolean).join(", ");

  function sideName(side) {
    return side === "source" ? t("The source") : t("Response {n}", { n: side.replace("output ", "") });
  }

  // What an annotator said about a text: its marks, with their names below it.
  function column({ annotator, marks }, { side, text }) {
    const own = marks.filter((mark) => mark.side === side),
      points = FG.points(text);
    const said = (mark) => FG.isolated([nameOf(mark), mark.evidence && t("evidence: {text}", { text: mark.evidence })].filter(Boolean).join("; "));
    return el(
      "article",
      { class: "candidate" },
      el("h4", {}, FG.isolated(annotator)),
      el("p", { class: "output", dir: "auto" }, marked(text, own)),
      el("ul", {}, own.map((mark) => el("li", {}, el("q", { dir: "auto" }, FG.visible(FG.cut(points, mark.start, mark.end))), " ", said(mark)))),
    );
  }

  // The lines about what is in no text: preferences, ratings, missing information, correction, comment.
  function otherLines({ page, preferences, all_bad: isAllBad, ratings, missing, correction, comment }) {
    const better = ({ first, second, better: best }) =>
      best ? t("{n} better than {other}", best === 1 ? { n: first, other: second } : { n: second, other: first }) : t("{n} equal to {other}", { n: first, other: second });
    const rated = (of, i) => t("Response {n}: {ratings}", { n: i + 1, ratings: FG.list(of.map(({ label, value }) => FG.isolated(`${label} ${value}`))) });
    const lacks = ({ label: kind, sentences }) =>
      sentences.length ? t("Missing: {kind} ({text})", { kind, text: FG.list(sentences.map((text) => `“${FG.isolated(text)}”`)) }) : t("Missing: {kind}", { kind });
    return [
      ...(preferences.length ? [t("Responses: {list}", { list: FG.list(preferences.map(better)) })] : []),
      ...(isAllBad ? [t("No response is acceptable")] : []),
      ...ratings.map(rated),
      ...missing.map(lacks),
      ...(page === "annotation" && correction ? [t("Correction: {text}", { text: correction })] : []),
      ...(comment ? [t("Comment: {text}", { text: comment })] : []),
    ];
  }

  function otherPart(judgement) {
    const lines = otherLines(judgement);
    if (!lines.length) return null;
    return el("div", {}, el("h4", {}, FG.isolated(judgement.annotator), ` (${PAGES[judgement.page]})`), lines.map((line) => el("p", {}, line)));
  }

  function show({ item, title, texts, judgements }) {
    const annotations = judgements.filter(({ page }) => page === "annotation"),
      parts = texts.map((text) => {
        const isMarked = annotations.some(({ marks }) => marks.some(({ side }) => side === text.side)),
          columns = isMarked ? annotations.map((judgement) => column(judgement, text)) : [el("p", { class: "output", dir: "auto" }, FG.visible(text.text))];
        return [el("h3", {}, sideName(text.side)), el("div", { class: "side-by-side" }, columns)];
      });
    $("shown-item").replaceChildren(
      el("h2", { id: "shown-title", tabindex: "-1", dir: "auto" }, t("Item {id}", { id: item })),
      el("p", { dir: "auto", class: "title" }, typeof title === "string" ? FG.visible(title) : ""),
      ...parts.flat(),
      ...judgements.map(otherPart).filter(Boolean),
    );
    $("shown-item").hidden = false;
    $("shown-title").focus();
  }

  async function open(number) {
    try {
      show(await FG.lead.call("GET", `/api/lead/items/${number}`));
    } catch (error) {
      FG.notice(t("Not opened: {reason}.", { reason: error.message }));
    }
  }

  // Open the page on which the judgements of an item are decided between, in another tab.
  async function decide(number, page) {
    try {
      const { address } = await FG.lead.call("POST", `/api/lead/items/${number}/decide`, { page });
      el("a", { href: address, target: "_blank", rel: "noopener" }).click();
    } catch (error) {
      FG.notice(t("Not opened: {reason}.", { reason: error.message }));
    }
  }

  function list() {
    const wanted = $("find-item").value.trim().toLowerCase(),
      isFound = ({ item, annotators }) => [item, ...annotators].some((text) => text.toLowerCase().includes(wanted)),
      decideButton = (number, item, page) =>
        el(
          "button",
          { type: "button", "aria-label": t("Decide {item}: {page}", { item, page: PAGES[page] }), onclick: () => decide(number, page) },
          PAGES[page],
        ),
      rows = items.filter(isFound).map(({ number, item, annotators, agreement, differ }) => [
        el("button", { type: "button", "data-open": `${number}`, onclick: () => open(number) }, FG.isolated(item)),
        FG.list(annotators.map(FG.isolated)),
        agreement === null ? "–" : FG.number(agreement, 2),
        differ.length ? el("span", { class: "row" }, differ.map((page) => decideButton(number, item, page))) : "–",
      ]);
    $("item-list").replaceChildren(FG.lead.table(t("Judged items, those with the least agreement first"), [t("Item"), t("By"), t("Agreement"), t("Decide")], rows));
  }

  async function load() {
    try {
      ({ items } = await FG.lead.call("GET", "/api/lead/items"));
    } catch (error) {
      FG.notice(t("Not opened: {reason}.", { reason: error.message }));
      return;
    }
    $("find-part").hidden = false;
    list();
  }

  async function download() {
    try {
      const { name, text } = await FG.lead.call("GET", "/api/lead/submissions"),
        link = el("a", { href: URL.createObjectURL(new Blob([text], { type: "application/jsonl" })), download: name });
      link.click();
      URL.revokeObjectURL(link.href);
    } catch (error) {
      FG.notice(t("Not downloaded: {reason}.", { reason: error.message }));
    }
  }

  $("load-items").addEventListener("click", load);
  $("find-item").addEventListener("input", list);
  $("download-all").addEventListener("click", download);
})(window.FG);
