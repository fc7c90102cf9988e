// Suggested errors on the annotation page: a dashed line in the text, a card, and keys to accept, change or reject.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = FG.$,
    { t } = FG;
  const SURE = 0.9; // the score from which suggestions can be accepted together
  const LONGEST = 160; // code points of a quote or an explanation on a card

  const short = (text) => {
    const points = FG.points(text);
    return points.length > LONGEST ? `${FG.cut(points, 0, LONGEST)}…` : text;
  };

  // Make the stored work on an item fit its suggestions. Steps that could bring decisions back are forgotten.
  FG.fitSuggestions = function ({ state, item }) {
    const doc = FG.withSuggestionList(item.row, state.doc);
    if (!FG.same(doc, state.doc)) Object.assign(state, { doc, undo: [], redo: [] });
    if (state.submitted) state.submitted = FG.withSuggestionList(item.row, state.submitted);
  };

  FG.suggestionHelp = (unit) => [
    [
      "Y / X",
      t("accept or reject the suggestion under the cursor; elsewhere: go to the next one"),
    ],
    [
      "E / 1 … 9",
      unit === "word"
        ? t("on a suggested word: accept it with another span, or as another kind")
        : t("on a suggested sentence: accept it with another span, or as another kind"),
    ],
    ["Shift+Y", t("accept all suggestions at {score} or more", { score: SURE })],
  ];

  // Add the functions that decide suggestions to the page. `suggested`: the suggestion that keys refer to, or -1.
  FG.addSuggesting = function (page) {
    const { schema, refuse } = page;
    const painted = new Map(); // side -> what its text shows now: {spans, look}
    page.suggested = -1;

    const all = () => FG.shownSuggestions(page.row);
    const sideOf = (i) => FG.sideOf(all()[i]);
    const viewOf = (i) => page.views[sideOf(i)];
    const kindOf = (i) => FG.kind(schema, all()[i].type);
    const openOnes = () => FG.verdicts(page.row, page.doc).flatMap((verdict, i) => (verdict === null ? [i] : []));
    // Whether a range of the text of a side has a part of suggestion `i`.
    const isAt = (i, side, range) => sideOf(i) === side && all()[i].start < range[1] && range[0] < all()[i].end;
    const partsOf = (i) => ({
      kind: kindOf(i).label,
      score: FG.number(all()[i].score, 2),
      source: short(all()[i].source),
    });
    const textOf = (i) => t("Suggested: {kind}, {score} by {source}", partsOf(i));
    const quoteOf = (i) => FG.quote(viewOf(i).points, all()[i].start, all()[i].end);

    // The suggestion whose card has the focus, or else the one under the cursor; -1 if there is none to decide.
    function current() {
      const card = document.activeElement && document.activeElement.closest("[data-suggestion]"),
        i = card ? Number(card.dataset.suggestion) : page.suggested;
      return openOnes().includes(i) ? i : -1;
    }

    // ---- the cursor ------------------------------------------------------------------------------------------
    // The cursor moved: keys refer to the suggestion that it is in.
    page.followSuggestion = function () {
      const { side, view } = page,
        isOne = view.range && (!view.isSelected || view.tapped);
      const here = isOne ? openOnes().filter((i) => isAt(i, side, view.range)) : [];
      if (!here.includes(page.suggested)) page.suggested = here.length ? here[0] : -1;
    };

    // What a screen reader hears about a range of the text in use, if it has a suggestion; "" without one.
    page.suggestionAt = function (range) {
      const at = openOnes().find((i) => isAt(i, page.side, range));
      return at === undefined ? "" : textOf(at);
    };

    const how = () =>
      FG.isTouch
        ? t("Accept, change or reject it in the list.")
        : t("Y accepts, X rejects, E changes.");

    page.goSuggestion = function (i, before = "") {
      const view = viewOf(i);
      page.mode = page.active = null;
      page.use(sideOf(i));
      page.suggested = i;
      view.collapse();
      view.cursor = view.units.findIndex((unit) => unit[1] > all()[i].start);
      view.spans[view.cursor].scrollIntoView({ block: "nearest" });
      page.render();
      if (!FG.isTouch) view.node.focus({ preventScroll: true });
      const what = t("{suggestion}: “{quote}”.", { suggestion: textOf(i), quote: quoteOf(i) });
      FG.say(`${before}${what} ${how()}`, before && "good");
    };

    // After a decision on suggestion `i`: the next one without a decision.
    function goOn(i, done) {
      const open = openOnes(),
        next = open.find((k) => k > i) ?? open[0];
      if (next !== undefined) {
        page.goSuggestion(next, `${done} `);
        return;
      }
      page.suggested = -1;
      page.render();
      if (!FG.isTouch) page.view.node.focus({ preventScroll: true });
      FG.say(`${done} ${t("All suggestions are decided.")}`, "good");
    }

    // The suggestion to decide, or -1 after going to the next one.
    function chosen() {
      const i = current(),
        [first] = openOnes();
      if (i >= 0) return i;
      if (first !== undefined) page.goSuggestion(first, `${t("This is the next suggestion. Press the key again to decide it.")} `);
      else refuse(all().length ? t("All suggestions are decided.") : t("This item has no suggestions."));
      return -1;
    }

    // ---- decisions -------------------------------------------------------------------------------------------
    // The error that a suggestion becomes. Its explanation is kept if it is the evidence that the kind needs.
    function errorOf(i, kind) {
      const { start, end, explanation, source, score } = all()[i];
      const error = { "error type": kind.name, explanation, start, end, ...FG.sideParts(sideOf(i)) };
      const doc = { errors: [error], "missing-info": [], "corrected-prediction": "", "no-error": false };
      const isEvidence = !FG.annotationProblems(schema, page.row, doc).some(({ field }) =>
        field.startsWith("feedback.errors[0].explanation"),
      );
      const origin = { index: i, source, score, verdict: "accepted" };
      return { ...error, explanation: isEvidence ? explanation : "", origin };
    }

    const rejectedOthers = (i) => page.doc.suggestions.filter(({ index }) => index !== i);

    // Make suggestion `i` an error of this kind. Returns its place in the list, or -1 with the reason on the page.
    function mark(i, kind) {
      const error = errorOf(i, kind);
      page.use(sideOf(i));
      if (!page.mayMark([error.start, error.end], kind)) return -1;
      page.mode = page.active = null;
      page.view.collapse();
      page.change({ errors: [...page.doc.errors, error], suggestions: rejectedOthers(i) });
      return page.doc.errors.length - 1;
    }

    // Ask for the evidence of a new error, if it lacks some. Returns whether it does.
    function asksEvidence(at) {
      const error = page.doc.errors[at],
        { needs } = FG.kind(schema, error["error type"]);
      if (needs === "nothing" || error.explanation) return false;
      page.active = { list: "errors", index: at };
      FG.say(t("Accepted as {error}. It needs evidence.", { error: page.labelOf(at) }), "good");
      if (needs === "sentences") page.askEvidence("errors", at);
      else page.earlier(at);
      return true;
    }

    const acceptedText = (i, at) =>
      t("Accepted: “{quote}” is {error}.", { quote: quoteOf(i), error: page.labelOf(at) });

    page.accept = function (i = chosen()) {
      const at = i < 0 ? -1 : mark(i, kindOf(i));
      if (at >= 0 && !asksEvidence(at)) goOn(i, acceptedText(i, at));
      return at >= 0;
    };

    page.rejectSuggestion = function (i = chosen()) {
      if (i < 0) return;
      page.mode = null;
      page.change({ suggestions: [...rejectedOthers(i), { index: i, verdict: "rejected" }] });
      goOn(i, t("Rejected: {kind}, “{quote}”.", { kind: kindOf(i).label, quote: quoteOf(i) }));
    };

    // Accept suggestion `i` and edit its span and its kind.
    page.changeSuggestion = function (i) {
      const at = mark(i, kindOf(i));
      if (at >= 0) page.edit(at);
    };

    // Whether E refers to a suggestion, which it then changes.
    page.editSuggestion = function () {
      const i = page.active ? -1 : current();
      if (i >= 0) page.changeSuggestion(i);
      return i >= 0;
    };

    // Accept the suggestion under the cursor as this kind. Returns null if the kind is not meant for a suggestion.
    page.markSuggested = function (kind) {
      const i = current(),
        isSelected = page.view.isSelected && !page.view.tapped,
        isOnError = page.active && page.active.list === "errors";
      if (i < 0 || page.mode || isOnError || isSelected || FG.kindSide(kind) === FG.SOURCE) return null;
      const at = mark(i, kind);
      if (at >= 0 && !asksEvidence(at)) goOn(i, acceptedText(i, at));
      return at >= 0;
    };

    page.acceptSure = function () {
      const sure = openOnes().filter((i) => all()[i].score >= SURE),
        errors = [...page.doc.errors];
      if (!sure.length) return refuse(t("No suggestion at {score} or more is left to decide.", { score: SURE }));
      if (page.doc["no-error"]) return refuse(t("Not accepted: “No error” is ticked. Untick it first."));
      for (const i of sure) {
        page.use(sideOf(i));
        const error = errorOf(i, kindOf(i)),
          lacksEvidence = kindOf(i).needs !== "nothing" && !error.explanation,
          other = page.conflict(errors, [error.start, error.end], kindOf(i));
        if (!lacksEvidence && other < 0) errors.push(error);
      }
      const count = errors.length - page.doc.errors.length,
        left = sure.length - count;
      page.mode = page.active = null;
      page.view.collapse();
      page.change({ errors });
      const rest = left
        ? ` ${t("{n} at {score} or more need evidence or overlap an error: decide them one by one.", { n: left, score: SURE })}`
        : "";
      goOn(-1, t("Accepted: {n}.", { n: count }) + rest);
      return true;
    };

    // ---- display ---------------------------------------------------------------------------------------------
    // A problem of suggestion `i` for the list of problems.
    page.suggestionProblem = (i, reason) => ({
      text: t("{suggestion}, “{quote}” {reason}.", {
        suggestion: textOf(i),
        quote: quoteOf(i),
        reason: FG.reason(reason),
      }),
      go: () => page.goSuggestion(i),
    });

    // Draw the dashed lines of the open suggestions in the text of a side.
    function paint(side, open) {
      const active = current(),
        view = page.views[side],
        first = open.filter((i) => sideOf(i) === side).sort((a, b) => (b === active) - (a === active)),
        look = JSON.stringify([first, active]),
        last = painted.get(side);
      if (last && last.spans === view.spans && last.look === look) return;
      painted.set(side, { spans: view.spans, look });
      view.units.forEach((unit, k) => {
        const at = first.find((i) => isAt(i, side, unit)),
          following = view.units[k + 1],
          isJoined = at !== undefined && following && following[0] < all()[at].end;
        for (const [node, isOn] of [
          [view.spans[k], at !== undefined],
          [view.gaps[k], isJoined],
        ]) {
          node.classList.toggle("suggested", Boolean(isOn));
          node.classList.toggle("current", Boolean(isOn && at === active));
        }
      });
    }

    function button(i, name, [label, longLabel], key, onclick) {
      return FG.el(
        "button",
        {
          type: "button",
          "data-key": `suggestion-${i}-${name}`,
          "aria-label": longLabel,
          onclick,
        },
        label,
        " ",
        FG.el("kbd", {}, key),
      );
    }

    function card(i, isOpen) {
      const isActive = i === current(),
        { explanation } = all()[i],
        labels = {
          accept: [t("Accept"), t("Accept suggestion {n}", { n: i + 1 })],
          change: [t("Change"), t("Change suggestion {n}", { n: i + 1 })],
          reject: [t("Reject"), t("Reject suggestion {n}", { n: i + 1 })],
        },
        title = isOpen ? textOf(i) : t("Rejected: {kind}, {score} by {source}", partsOf(i));
      return FG.el(
        "li",
        {
          class: isActive ? "card suggestion active" : "card suggestion",
          color: kindOf(i).color,
          "data-key": `suggestion-${i}`,
          "data-suggestion": i,
        },
        FG.el(
          "button",
          {
            type: "button",
            class: "cardtitle",
            "data-key": `suggestion-${i}-title`,
            "aria-current": isActive ? "true" : null,
            onclick: () => isOpen && page.goSuggestion(i),
          },
          title,
        ),
        FG.el("q", { dir: "auto" }, short(quoteOf(i))),
        schema.mark_outputs ? FG.el("p", { class: "hint" }, t("in {text}", { text: page.textName(sideOf(i)) })) : null,
        explanation ? FG.el("p", { class: "hint", dir: "auto" }, short(explanation)) : null,
        FG.el(
          "div",
          { class: "row" },
          button(i, "accept", labels.accept, "Y", () => page.accept(i)),
          isOpen ? button(i, "change", labels.change, "E", () => page.changeSuggestion(i)) : null,
          isOpen ? button(i, "reject", labels.reject, "X", () => page.rejectSuggestion(i)) : null,
        ),
      );
    }

    // Show the suggestions in the text and in the list.
    page.showSuggestions = function () {
      const open = openOnes(),
        rejected = (page.doc.suggestions || []).map(({ index }) => index),
        listed = [...open, ...rejected].sort((a, b) => a - b);
      for (const side of FG.outputSides(schema)) paint(side, open);
      $("suggested").hidden = !all().length;
      $("suggestion-title").textContent = open.length ? t("Suggestions to decide") : t("All suggestions are decided");
      $("suggestion-count").textContent = open.length ? String(open.length) : "";
      $("accept-sure").hidden = !open.some((i) => all()[i].score >= SURE);
      FG.morph(
        $("suggestions"),
        listed.map((i) => card(i, open.includes(i))),
      );
    };

    $("suggested").replaceChildren(
      FG.el("h3", {}, FG.el("span", { id: "suggestion-title" }), " ", FG.el("span", { id: "suggestion-count", class: "count" })),
      FG.el(
        "button",
        { type: "button", id: "accept-sure", "aria-keyshortcuts": "Shift+Y", onclick: page.acceptSure },
        t("Accept all at {score} or more", { score: SURE }),
        " ",
        FG.el("kbd", {}, "Shift+Y"),
      ),
      FG.el("ol", { id: "suggestions" }),
    );
  };
})(window.FG);
