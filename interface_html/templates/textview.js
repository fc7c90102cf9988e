// The text as words or sentences (units): a cursor, a selection by drag, taps or Shift+arrows, and the marked errors.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const { t } = FG;
  // The place in the text at a point of the window, or null.
  function caretAt(x, y) {
    if (document.caretPositionFromPoint) {
      const place = document.caretPositionFromPoint(x, y);
      return place && { node: place.offsetNode, offset: place.offset };
    }
    const range = document.caretRangeFromPoint(x, y);
    return range && { node: range.startContainer, offset: range.startOffset };
  }

  // The view in which the pointer went down last, or null. A drag that ends in another view belongs to it.
  let pressed = null;
  document.addEventListener(
    "pointerdown",
    () => {
      pressed = null;
    },
    true,
  );

  FG.TextView = class {
    // `handlers` is null for a text that is only shown. onChange(): the cursor or the selection moved. onTap(unit): a
    // single unit was tapped; onDrag(): several were selected. Both come after the selection changed.
    // onHover(unit): the pointer is over a unit; -1 if over none.
    constructor(node, handlers) {
      Object.assign(this, { node, units: [], cursor: -1, anchor: null, tapped: false, isPressed: false });
      if (handlers) this.listen(handlers);
    }

    listen({ onChange, onTap, onDrag, onHover }) {
      const { node } = this;
      Object.assign(this, { onChange, onTap, onDrag });
      node.addEventListener("keydown", (event) => this.key(event));
      // Tab goes to the first unit. The pointer stays at its own: scrolling would put another one below it.
      node.addEventListener("focus", () => {
        if (this.cursor < 0 && !this.isPressed) this.move(0, false);
      });
      // A drag may end anywhere: right of the text, below it, or outside the window.
      node.addEventListener("pointerdown", () => {
        this.isPressed = true;
        pressed = this;
      });
      document.addEventListener("pointermove", (event) => {
        if (this.isPressed && event.buttons && this.isOutside(event))
          requestAnimationFrame(() => this.extendTo(event)); // after the browser has extended its selection
      });
      document.addEventListener("pointercancel", () => {
        this.isPressed = false;
      });
      document.addEventListener("pointerup", (event) => {
        if (pressed && pressed !== this) return;
        if (this.isPressed && this.isOutside(event)) this.extendTo(event);
        this.isPressed = false;
        this.pointer(event);
      });
      node.addEventListener("pointerover", (event) => onHover(this.unitAt(event.target)));
      node.addEventListener("pointerleave", () => onHover(-1));
    }

    show(schema, text) {
      this.points = FG.points(text);
      this.units = schema.unit === "word" ? FG.units(this.points) : FG.sentences(this.points);
      this.sentences = FG.sentences(this.points);
      this.cursor = -1;
      this.anchor = null;
      this.tapped = false;
      this.painted = [];
      this.spans = this.units.map(([start, end], i) =>
        FG.el("span", { class: "w", "data-i": i }, FG.visible(FG.cut(this.points, start, end))),
      );
      this.gaps = this.units.map(([, end], i) =>
        FG.el(
          "span",
          { class: "g" },
          FG.visible(
            FG.cut(this.points, end, i + 1 < this.units.length ? this.units[i + 1][0] : this.points.length),
          ),
        ),
      );
      const head = this.units.length ? FG.cut(this.points, 0, this.units[0][0]) : text;
      this.node.replaceChildren(...FG.visible(head), ...this.spans.flatMap((span, i) => [span, this.gaps[i]]));
    }

    // The selection [start, end) in code points, or null. Without a selection it is the unit under the cursor.
    get range() {
      if (this.cursor < 0) return null;
      const from = this.anchor === null ? this.cursor : this.anchor;
      return [this.units[Math.min(from, this.cursor)][0], this.units[Math.max(from, this.cursor)][1]];
    }

    // Whether several units, or one by a tap or a drag, were selected on purpose.
    get isSelected() {
      return this.anchor !== null;
    }

    // Number of units in [start, end).
    count(start, end) {
      return this.units.filter((unit) => unit[0] >= start && unit[1] <= end).length;
    }

    select(start, end) {
      this.anchor = this.units.findIndex((unit) => unit[1] > start);
      this.cursor = this.units.findLastIndex((unit) => unit[0] < end);
      this.tapped = false;
      this.onChange();
    }

    collapse() {
      this.anchor = null;
      this.tapped = false;
    }

    move(to, extend) {
      if (!this.units.length) return;
      window.getSelection().removeAllRanges();
      if (extend && this.anchor === null) this.anchor = Math.max(this.cursor, 0);
      if (!extend) this.anchor = null;
      this.cursor = Math.min(Math.max(to, 0), this.units.length - 1);
      this.tapped = false;
      this.spans[this.cursor].scrollIntoView({ block: "nearest" });
      this.onChange();
    }

    // The first or last unit of the sentence; from there, of the previous or next sentence.
    sentenceEdge(last) {
      const edges = this.sentences.map(([a, b]) =>
        last ? this.units.findLastIndex((unit) => unit[0] < b) : this.units.findIndex((unit) => unit[1] > a),
      );
      const to = last ? edges.find((i) => i > this.cursor) : edges.findLast((i) => i < this.cursor);
      return to === undefined ? this.cursor : to;
    }

    // The unit nearest to the cursor in the line above or below.
    vertical(down) {
      const box = this.spans[Math.max(this.cursor, 0)].getClientRects()[0],
        middle = (box.left + box.right) / 2;
      let best = -1,
        cost = Infinity;
      this.spans.forEach((span, i) => {
        const other = span.getClientRects()[0],
          away = down ? other.top - box.top : box.top - other.top;
        if (away < box.height / 2) return;
        const price = away * 10000 + Math.abs((other.left + other.right) / 2 - middle);
        if (price < cost) {
          cost = price;
          best = i;
        }
      });
      return best < 0 ? this.cursor : best;
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || !this.units.length) return;
      const right = getComputedStyle(this.node).direction === "rtl" ? -1 : 1;
      const to = {
        ArrowRight: () => this.cursor + right,
        ArrowLeft: () => this.cursor - right,
        ArrowUp: () => this.vertical(false),
        ArrowDown: () => this.vertical(true),
        Home: () => this.sentenceEdge(false),
        End: () => this.sentenceEdge(true),
      }[event.key];
      if (!to) return;
      event.preventDefault();
      this.move(to(), event.shiftKey);
    }

    unitAt(target) {
      const node = target && (target.nodeType === 1 ? target : target.parentElement);
      const span = node && node.closest(".w, .g");
      if (!span || !this.node.contains(span)) return -1;
      return span.classList.contains("w") ? this.spans.indexOf(span) : this.gaps.indexOf(span);
    }

    isOutside(event) {
      const box = this.node.getBoundingClientRect(),
        { clientX: x, clientY: y } = event;
      return x <= box.left || x >= box.right || y <= box.top || y >= box.bottom;
    }

    // Let a drag that left the text end in it: at the end of the line that it left, or above and below the text at the
    // start and at the end of the text. The browser would end it in another text of the page.
    extendTo(event) {
      const chosen = window.getSelection(),
        box = this.node.getBoundingClientRect(),
        last = this.node.childNodes.length;
      if (chosen.isCollapsed || !this.node.contains(chosen.anchorNode)) return;
      if (event.clientY <= box.top) chosen.extend(this.node, 0);
      else if (event.clientY >= box.bottom) chosen.extend(this.node, last);
      else {
        const isLeft = event.clientX <= box.left,
          edges = getComputedStyle(this.node),
          x = isLeft ? box.left + parseFloat(edges.paddingLeft) : box.right - parseFloat(edges.paddingRight),
          caret = caretAt(isLeft ? x + 3 : x - 3, event.clientY);
        if (caret && this.node.contains(caret.node)) chosen.extend(caret.node, caret.offset);
      }
    }

    // Take over what the browser shows as selected. Returns "taken" if it has units of this text, which are now
    // selected here; "elsewhere" if it is in another text; "crossing" if it came from one; null if there is none.
    takeNative() {
      const chosen = window.getSelection();
      if (!chosen || chosen.isCollapsed || !chosen.rangeCount) return null;
      const range = chosen.getRangeAt(0);
      if (!range.intersectsNode(this.node)) return "elsewhere";
      // a drag from another text: what is between its ends is not what was meant
      if (!this.node.contains(chosen.anchorNode) && this.node.contains(chosen.focusNode)) {
        chosen.removeAllRanges(); // or the next drag would move it
        FG.say(t("Nothing is selected: the selection began in another text. Begin it in this one."), "bad");
        return "crossing";
      }
      const hit = this.spans.flatMap((span, i) => (this.overlaps(range, span) ? [i] : []));
      chosen.removeAllRanges();
      if (!hit.length) return null;
      this.anchor = hit[0];
      this.cursor = hit[hit.length - 1];
      this.tapped = false;
      return "taken";
    }

    // The end of a drag, or a tap. The first tap is one end of the selection, the second tap the other.
    pointer(event) {
      const native = this.takeNative();
      if (native === "taken") {
        this.onChange();
        this.onDrag();
      }
      if (native !== null || event.button !== 0) return;
      const i = this.unitAt(event.target);
      if (i < 0) return;
      if (this.tapped) {
        this.cursor = i;
        this.tapped = false;
        this.onChange();
        this.onDrag();
      } else {
        this.anchor = this.cursor = i;
        this.tapped = true;
        this.onChange();
        this.onTap(i);
      }
    }

    // Whether a native selection contains at least one character of a unit.
    overlaps(range, span) {
      const walker = document.createTreeWalker(span, NodeFilter.SHOW_TEXT),
        first = walker.nextNode();
      let last = first;
      while (walker.nextNode()) last = walker.currentNode;
      return (
        range.comparePoint(first, 0) <= 0 &&
        range.comparePoint(last, last.length) >= 0 &&
        !(range.startContainer === last && range.startOffset === last.length) &&
        !(range.endContainer === first && range.endOffset === 0)
      );
    }

    // marks: [{start, end, kind, badge, active}]; earlier: the repeated text [start, end), or null. Only units that
    // look different from before are touched.
    paint(marks, earlier) {
      const range = this.isSelected ? this.range : null;
      const isInside = (unit, r) => Boolean(unit && r && unit[0] >= r[0] && unit[1] <= r[1]);
      const on = FG.marksOn(this.units, marks);
      this.units.forEach((unit, i) => {
        const mark = on[i].find(({ active }) => active) || on[i][0],
          following = this.units[i + 1],
          joined = on[i].filter(({ end }) => following && following[1] <= end),
          begun = on[i].filter(({ start }) => i === 0 || this.units[i - 1][1] <= start),
          line = ({ kind, lane }) => [kind.color, lane, Boolean(kind.positive)];
        const look = {
          mark: mark && [mark.kind.color, mark.active, mark.kind.positive],
          isJoined: joined.includes(mark),
          badges: begun.map(({ badge, kind }) => [badge, kind.color]),
          lines: on[i].map(line),
          gapLines: joined.map(line),
          isSelected: isInside(unit, range),
          isGapSelected: isInside(unit, range) && isInside(following, range),
          isCursor: i === this.cursor,
          isEarlier: isInside(unit, earlier),
        };
        const key = JSON.stringify(look);
        if (this.painted[i] === key) return;
        this.painted[i] = key;
        this.paintUnit(i, look);
      });
    }

    paintUnit(i, look) {
      const span = this.spans[i],
        gap = this.gaps[i];
      for (const [node, mark] of [
        [span, look.mark],
        [gap, look.isJoined ? look.mark : null],
      ]) {
        node.classList.toggle("marked", Boolean(mark));
        node.classList.toggle("active", Boolean(mark && mark[1]));
        node.classList.toggle("liked", Boolean(mark && mark[2]));
        if (!mark) continue;
        node.style.setProperty("--c", mark[0]);
        node.style.setProperty("--on-c", FG.inkOn(mark[0]));
      }
      FG.paintLines(span, look.lines);
      FG.paintLines(gap, look.gapLines);
      for (const tag of span.querySelectorAll(".tag")) tag.remove();
      span.prepend(...look.badges.map(([badge, color]) => FG.el("span", { class: "tag", "data-badge": badge, color, "aria-hidden": "true" })));
      span.classList.toggle("selected", look.isSelected);
      gap.classList.toggle("selected", look.isGapSelected);
      span.classList.toggle("cursor", look.isCursor);
      span.classList.toggle("earlier", look.isEarlier);
    }

    // Outline the units in [start, end): those that belong to the entry under the pointer. null: none.
    link(range) {
      this.units.forEach((unit, i) => {
        this.spans[i].classList.toggle("linked", Boolean(range && unit[0] < range[1] && range[0] < unit[1]));
      });
    }
  };
})(window.FG);
