// Marking errors: choosing and changing kinds, a kind that stays on, spans and their ends, removing.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const $ = FG.$,
    { t, tn } = FG;
  const LONGEST_QUOTE = 60;

  const replaced = (list, i, entry) => list.map((old, k) => (k === i ? entry : old));
  FG.replaced = replaced;

  // The text [start, end) in a message; the middle of a long one is left out.
  FG.quote = function (points, start, end) {
    if (end - start <= LONGEST_QUOTE) return FG.cut(points, start, end);
    const half = LONGEST_QUOTE / 2;
    return `${FG.cut(points, start, start + half)}…${FG.cut(points, end - half, end)}`;
  };

  // "1 word", "18 words".
  FG.countUnits = function (page, start, end) {
    const count = page.view.count(start, end);
    return page.schema.unit === "word"
      ? tn("{n} word", "{n} words", { n: count })
      : tn("{n} sentence", "{n} sentences", { n: count });
  };

  FG.hint = function (schema) {
    if (schema.unit === "word")
      return FG.isTouch
        ? t("Tap the first and the last word, then a kind.")
        : t(
            "Drag over words, click the first and the last one, or use Shift and the arrow keys. Then choose a kind.",
          );
    return FG.isTouch
      ? t("Tap the first and the last sentence, then a kind.")
      : t(
          "Drag over sentences, click the first and the last one, or use Shift and the arrow keys. Then choose a kind.",
        );
  };

  // Add the functions that change errors to the page.
  FG.addMarking = function (page) {
    const { schema, refuse } = page,
      NOUN = schema.fields.noun,
      isWords = schema.unit === "word",
      leaveHint = FG.isTouch ? "" : ` ${t("Esc cancels.")}`;
    const activeError = () => (page.active && page.active.list === "errors" ? page.active.index : -1);
    const kindOf = (error) => FG.kind(schema, error["error type"]);

    // The side on which a kind would be marked now.
    page.sideFor = function (kind) {
      if (FG.kindSide(kind) === FG.SOURCE) return FG.SOURCE;
      return page.side === FG.SOURCE ? FG.RESPONSE : page.side;
    };

    // Take what is selected in a text in which the kind is marked: [its side, "taken"]; or why not.
    function takeNative(kind) {
      const side = page.sideFor(kind),
        native = page.views[side].takeNative();
      if (native !== "elsewhere" || side === FG.SOURCE) return [side, native];
      for (const other of FG.outputSides(schema))
        if (other !== side && page.views[other].takeNative() === "taken") return [other, "taken"];
      return [side, native];
    }

    // The error that keeps the range from being marked as `kind`: its index, or -1.
    page.conflict = (errors, range, kind, except) =>
      schema.overlap
        ? FG.sameMark(errors, range, kind, except, page.sideFor(kind))
        : FG.overlapOf(errors, ...range, except, page.sideFor(kind));

    // Whether the range may be marked as `kind`. It must not overlap an error, except the one with index `except`.
    function mayMark(range, kind, except) {
      if (page.doc["no-error"] && !kind.positive)
        return refuse(t("Not marked: “No error” is ticked. Untick it first."));
      if (!range) return refuse(`${t("Not marked: nothing is selected.")} ${FG.hint(schema)}`);
      const other = page.conflict(page.doc.errors, range, kind, except);
      if (other >= 0) {
        if (except === undefined) page.active = { list: "errors", index: other };
        page.render();
        const error = page.labelOf(other);
        return refuse(
          schema.overlap
            ? t("Not marked: the selection is already {error}. Edit or remove it first.", { error })
            : t("Not marked: the selection overlaps {error}. Edit or remove it first.", { error }),
        );
      }
      if (kind.needs === "sentences" && !FG.sources(schema, page.row).length)
        return refuse(
          t("Not marked: this item has no {source} that the {noun} could contradict. Choose another kind.", {
            source: schema.fields.context.noun,
            noun: NOUN,
          }),
        );
      if (kind.needs === "earlier text" && !FG.strip(FG.cut(page.view.points, 0, range[0])))
        return refuse(
          t(
            "Not marked: there is no text before the selection that it could repeat. Choose another kind.",
          ),
        );
      return true;
    }

    page.mayMark = mayMark;

    // The error that a kind is for, and its span: the error that is being edited, the active one if nothing else is
    // selected, or a new one (undefined).
    function choice() {
      if (page.mode === "span") return { index: page.active.index, range: page.view.range };
      const index = activeError();
      const { isSelected, tapped, range } = page.view;
      if (index < 0 || (isSelected && !tapped)) return { index: undefined, range };
      const { start, end } = page.doc.errors[index];
      return { index, range: [start, end] };
    }

    // Mark what is selected, or change the active error.
    page.chooseError = function (kind) {
      if (page.mode === "earlier")
        return refuse(t("Select the earlier text first and confirm it, or cancel."));
      const [side, native] = takeNative(kind),
        place = page.textName(side);
      if (native === "elsewhere")
        return refuse(
          isWords
            ? t("Not marked: the selected text is not in the {noun}. Select words of the {noun}.", { noun: place })
            : t("Not marked: the selected text is not in the {noun}. Select sentences of the {noun}.", {
                noun: place,
              }),
        );
      if (native === "taken") page.use(side);
      const asSuggested = page.markSuggested(kind);
      if (asSuggested !== null) return asSuggested;
      if (page.side !== side)
        return refuse(
          isWords
            ? t("Not marked: {kind} is marked in the {noun}. Select words of the {noun}.", {
                kind: kind.label,
                noun: place,
              })
            : t("Not marked: {kind} is marked in the {noun}. Select sentences of the {noun}.", {
                kind: kind.label,
                noun: place,
              }),
        );
      const { index, range } = choice();
      if (!mayMark(range, kind, index)) return false;
      const old = index === undefined ? null : page.doc.errors[index],
        isSameKind = Boolean(old) && old["error type"] === kind.name;
      const error = { "error type": kind.name, explanation: "", start: range[0], end: range[1], ...FG.sideParts(side) };
      if (old && old.origin) error.origin = old.origin;
      Object.assign(error, FG.keptSeverity(old, kind), FG.keptReason(old, kind));
      const fresh = isSameKind ? { ...old, start: range[0], end: range[1] } : error;
      const errors = old ? replaced(page.doc.errors, index, fresh) : [...page.doc.errors, fresh];
      const at = old ? index : errors.length - 1;
      page.active = { list: "errors", index: at };
      page.mode = null;
      page.view.collapse();
      page.change({ errors });
      const quote = FG.quote(page.view.points, ...range),
        parts = { quote, size: FG.countUnits(page, ...range), error: page.labelOf(at) };
      FG.say(
        old
          ? t("Changed: “{quote}” ({size}) is {error}.", parts)
          : t("Marked: “{quote}” ({size}) is {error}.", parts),
        "good",
      );
      if (!isSameKind && kind.needs === "sentences") page.askEvidence("errors", at);
      if (!isSameKind && kind.needs === "earlier text") page.earlier(at);
      return true;
    };

    // ---- a kind that stays on ---------------------------------------------------------------------------------
    page.setKeep = function (isOn) {
      page.keep = isOn;
      page.sticky = null;
      FG.say(
        isOn
          ? t("Choose a kind: it stays on, and each selection is marked at once.")
          : t("No kind stays on."),
      );
      page.render();
    };

    function stay(kind) {
      page.keep = true;
      page.sticky = kind;
      page.render();
      const end = FG.isTouch ? "" : ` ${t("Esc ends it.")}`;
      FG.say(t("{kind} stays on: each selection is marked at once.", { kind: kind.label }) + end);
    }

    // The key or button of a kind. With `keep`, the kind stays on.
    page.pressKind = function (kind) {
      if (!page.keep || page.mode) return page.chooseError(kind);
      return page.keepKind(kind);
    };

    // Let a kind stay on, and mark what is selected now; end it if it is on already.
    page.keepKind = function (kind) {
      const { view } = page,
        isSelected = view.takeNative() === "taken" || (view.isSelected && !view.tapped);
      if (page.sticky === kind && !isSelected) {
        page.setKeep(false);
        return true;
      }
      stay(kind);
      return isSelected ? page.chooseError(kind) : true;
    };

    // ---- the active error --------------------------------------------------------------------------------------
    page.activate = function (list, index, quiet) {
      if (page.active && page.active.list === list && page.active.index === index && quiet) return;
      page.mode = null;
      page.active = { list, index };
      if (list === "errors") page.use(FG.sideOf(page.doc.errors[index]));
      if (list === "errors" && !quiet) {
        const { view } = page;
        view.collapse();
        view.cursor = view.units.findIndex((unit) => unit[1] > page.doc.errors[index].start);
        view.spans[view.cursor].scrollIntoView({ block: "nearest" });
      }
      page.render();
    };

    function editHint(error) {
      if (FG.isTouch)
        return isWords
          ? t("Editing {error}: tap other words, then a kind.", error)
          : t("Editing {error}: tap other sentences, then a kind.", error);
      return isWords
        ? t("Editing {error}: select other words and press Enter, or choose another kind.", error)
        : t("Editing {error}: select other sentences and press Enter, or choose another kind.", error);
    }

    page.edit = function (index) {
      const error = page.doc.errors[index];
      page.use(FG.sideOf(error));
      page.active = { list: "errors", index };
      page.mode = "span";
      page.view.select(error.start, error.end);
      page.view.node.focus();
      FG.say(editHint({ error: page.labelOf(index) }) + leaveHint);
    };

    page.editActive = function () {
      const { active } = page;
      if (active && active.list === "errors") page.edit(active.index);
      else if (active) page.askEvidence(active.list, active.index);
      else refuse(t("Nothing to edit: move to an error first, in the {noun} or in the list.", { noun: NOUN }));
    };

    page.remove = function (list, index) {
      const name = list === "errors" ? page.labelOf(index) : t("missing item {n}", { n: index + 1 });
      page.active = page.mode = page.refused = null;
      page.view.collapse();
      page.change({ [list]: page.doc[list].filter((_, k) => k !== index) });
      page.view.node.focus({ preventScroll: true });
      page.active = null;
      page.render();
      FG.say(
        FG.isTouch
          ? t("Removed: {entry}. Undo restores it.", { entry: name })
          : t("Removed: {entry}. Ctrl+Z restores it.", { entry: name }),
        "good",
      );
    };

    page.removeActive = function () {
      if (page.active) page.remove(page.active.list, page.active.index);
      else refuse(t("Nothing to remove: move to an error first, in the {noun} or in the list.", { noun: NOUN }));
    };

    // Move the start or the end of the active span by one unit.
    page.nudge = function (side, by) {
      const index = activeError();
      if (index < 0) return refuse(t("Nothing to move: move to an error first, in the {noun} or in the list.", { noun: NOUN }));
      const error = page.doc.errors[index],
        { view } = page,
        place = page.textName(page.side);
      let first = view.units.findIndex((unit) => unit[1] > error.start),
        last = view.units.findLastIndex((unit) => unit[0] < error.end);
      if (side === "start") first += by;
      else last += by;
      if (first < 0 || last >= view.units.length) return refuse(t("Not moved: the {noun} ends here.", { noun: place }));
      if (first > last) {
        const parts = { error: page.labelOf(index) };
        return refuse(
          isWords
            ? t("Not moved: {error} has only one word.", parts)
            : t("Not moved: {error} has only one sentence.", parts),
        );
      }
      const start = view.units[first][0],
        end = view.units[last][1],
        other = FG.overlapOf(page.doc.errors, start, end, index, page.side);
      if (other >= 0 && !schema.overlap) return refuse(t("Not moved: {error} is next to it.", { error: page.labelOf(other) }));
      const repeats = kindOf(error).needs === "earlier text" && FG.strip(error.explanation);
      if (repeats && !FG.cut(view.points, 0, start).includes(repeats))
        return refuse(t("Not moved: the earlier text that it repeats must stay before it."));
      page.mode = null;
      view.collapse();
      view.cursor = side === "start" ? first : last;
      page.change({ errors: replaced(page.doc.errors, index, { ...error, start, end }) }, `nudge-${index}`);
      const quote = FG.quote(view.points, start, end),
        size = FG.countUnits(page, start, end);
      FG.say(
        t("Changed: {error} is “{quote}” ({size}).", { error: page.labelOf(index), quote, size }),
        "good",
      );
      return true;
    };

    // ---- the earlier text that a span repeats ---------------------------------------------------------------
    page.earlier = function (index) {
      page.active = { list: "errors", index };
      page.mode = "earlier";
      page.view.collapse();
      page.view.cursor = 0;
      page.view.node.focus();
      page.render();
      const error = page.labelOf(index);
      FG.say(
        FG.isTouch
          ? t("Tap the first and the last word of the earlier text that {error} repeats.", { error })
          : t("Select the earlier text that {error} repeats, then press Enter.", { error }) + leaveHint,
      );
    };

    page.useEarlier = function () {
      page.view.takeNative();
      const range = page.view.range,
        { index } = page.active,
        error = page.doc.errors[index];
      if (!range) return refuse(t("Nothing is selected: select the earlier text."));
      if (range[1] > error.start)
        return refuse(
          t("Not accepted: the earlier text must come before {error}, which repeats it.", {
            error: page.labelOf(index),
          }),
        );
      const explanation = FG.cut(page.view.points, range[0], range[1]);
      page.mode = null;
      page.view.collapse();
      page.change({ errors: replaced(page.doc.errors, index, { ...error, explanation }) });
      const quote = FG.quote(page.view.points, ...range);
      FG.say(t("Accepted: {error} repeats “{quote}”.", { error: page.labelOf(index), quote }), "good");
      return true;
    };

    page.confirm = function () {
      if (page.mode === "earlier") page.useEarlier();
      else page.chooseError(kindOf(page.doc.errors[page.active.index]));
    };

    page.leave = function () {
      if (page.mode) FG.say("");
      page.mode = null;
      page.view.collapse();
      page.render();
    };

    page.toggleNone = function () {
      const count = FG.countErrors(schema, page.doc);
      if (!page.doc["no-error"] && count)
        refuse(
          tn(
            "“No error” cannot be ticked: {n} error or missing item is marked. Remove what is marked first.",
            "“No error” cannot be ticked: {n} errors or missing items are marked. Remove what is marked first.",
            { n: count },
          ),
        );
      else page.change({ "no-error": !page.doc["no-error"] });
      page.render();
    };
  };
})(window.FG);
