// The guideline on each page: its texts, worked examples of kinds and judgements, and answers to what annotators ask. Open
// until it was read once. Where it stands above the outputs, what is not about the judgement itself is folded.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = FG.$,
    { t } = FG;

  function exampleNode(example) {
    return FG.el(
      "li",
      { class: example.applies ? "example applies" : "example" },
      FG.el("span", { class: "verdict" }, example.applies ? t("Yes:") : t("No:")),
      " ",
      FG.quoted(example.text),
      FG.el("p", { class: "why" }, FG.own(example.why)),
    );
  }

  function kindNode(kind) {
    return FG.el(
      "article",
      { class: "guide-kind" },
      FG.el("h4", {}, FG.badge(kind), " ", FG.own(kind.label), kind.positive ? ` ${t("(liked)")}` : null),
      FG.el("p", {}, FG.own(FG.oneStop(`${kind.help}.`))),
      exampleNodes(kind.examples),
    );
  }

  // A list of worked examples; null without any.
  function exampleNodes(examples) {
    return examples && examples.length ? FG.el("ul", {}, examples.map(exampleNode)) : null;
  }

  // The examples of judgements that belong to no kind; null without any.
  function judgementsNode(examples) {
    if (!examples || !examples.length) return null;
    return FG.el("article", { class: "guide-kind" }, FG.el("h4", {}, t("Examples")), exampleNodes(examples));
  }

  // Cases that annotators ask about, and the answers; null without any.
  function faqNode(faq) {
    if (!faq || !faq.length) return null;
    const entries = faq.flatMap(({ case: asked, answer }) => [
      FG.el("dt", { dir: "auto" }, FG.own(asked)),
      FG.el("dd", { dir: "auto" }, FG.own(answer)),
    ]);
    const title = FG.el("h4", {}, t("What annotators ask"));
    return FG.el("article", { class: "guide-kind" }, title, FG.el("dl", { id: "faq" }, entries));
  }

  const folded = (nodes) =>
    nodes.length
      ? [FG.el("details", { id: "guide-more" }, FG.el("summary", {}, t("Kinds, examples and hints")), nodes)]
      : [];

  // On the annotation page, the guideline has room beside the text in a wide window (page.css); in a narrow one it stands
  // above the text, as on the other pages, and not between the marks and the correction.
  const wide = matchMedia("(min-width: 80rem)");
  function place() {
    if (!$("marked")) return;
    if (wide.matches) $("marked").append($("guide"));
    else $("judge").before($("guide"));
    if ($("guide-more")) $("guide-more").open = wide.matches;
  }
  wide.onchange = place;

  function setOpen(isOpen) {
    $("guide-body").hidden = !isOpen;
    $("guide-button").setAttribute("aria-expanded", String(isOpen));
  }

  // Show the guideline of a schema. `store` remembers the version that the annotator has read: closing the panel is reading
  // it.
  let reader = null;
  FG.showGuide = function (schema, store) {
    if (reader === store.annotator) return;
    reader = store.annotator;
    const own = (schema.page_guidelines || {})[store.page],
      part = own ? `guideline-${store.page}` : "guideline",
      name = store.name(`${part}/${encodeURIComponent(reader)}`),
      read = () => store.write(name, schema.guideline_version);
    const close = () => {
      setOpen(false);
      read();
    };
    const more = [
      ...[...schema.errors, ...schema.missing].map(kindNode),
      judgementsNode(schema.examples),
      faqNode(schema.faq),
    ].filter(Boolean);
    const parts = [
      ...(own || schema.guideline).map((text) => FG.el("p", {}, FG.own(text))),
      ...folded(more),
      FG.el(
        "button",
        {
          type: "button",
          id: "guide-read",
          class: "main",
          onclick: () => {
            close();
            $("guide-button").focus();
          },
        },
        t("I have read this"),
      ),
    ];
    $("guide-body").replaceChildren(...parts);
    place();
    $("guide-button").onclick = () => {
      if ($("guide-body").hidden) setOpen(true);
      else close();
    };
    setOpen(store.storage.getItem(name) !== schema.guideline_version);
  };
})(window.FG);
