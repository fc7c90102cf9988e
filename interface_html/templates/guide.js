// The guideline beside the text: what each kind means, with worked examples. Open until it was read once.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = FG.$;

  function exampleNode(example) {
    return FG.el(
      "li",
      { class: example.applies ? "example applies" : "example" },
      FG.el("span", { class: "verdict" }, example.applies ? "Yes: " : "No: "),
      FG.el("q", {}, example.text),
      ` ${example.why}`,
    );
  }

  function kindNode(kind) {
    return FG.el(
      "article",
      { class: "guide-kind" },
      FG.el("h4", {}, FG.badge(kind), ` ${kind.label}${kind.positive ? " (liked)" : ""}`),
      FG.el("p", {}, `${kind.help}.`),
      kind.examples && kind.examples.length ? FG.el("ul", {}, kind.examples.map(exampleNode)) : null,
    );
  }

  function setOpen(isOpen) {
    $("guide-body").hidden = !isOpen;
    $("guide-button").setAttribute("aria-expanded", String(isOpen));
  }

  // Show the guideline of a schema. `store` remembers the version that was read: closing the panel is reading it.
  FG.showGuide = function (schema, store) {
    if ($("guide-body").childElementCount) return;
    const name = store.name("guideline"),
      read = () => store.write(name, schema.guideline_version);
    const close = () => {
      setOpen(false);
      read();
    };
    $("guide-body").replaceChildren(
      ...schema.guideline.map((text) => FG.el("p", {}, text)),
      ...[...schema.errors, ...schema.missing].map(kindNode),
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
        "I have read this",
      ),
    );
    $("guide-button").addEventListener("click", () => {
      if ($("guide-body").hidden) setOpen(true);
      else close();
    });
    setOpen(store.storage.getItem(name) !== schema.guideline_version);
  };
})(window.FG);
