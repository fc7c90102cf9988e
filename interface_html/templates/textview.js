// The text as words or sentences (units): a cursor, a selection by drag, taps or Shift+arrows, and the marked errors.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  FG.TextView = class {
    // onTap(unit): a single unit was tapped; onDrag(): several were selected. Both are called after the selection changed.
    constructor(node, onChange, onTap, onDrag) {
      Object.assign(this, {
        node,
        onChange,
        onTap,
        onDrag,
        units: [],
        cursor: -1,
        anchor: null,
        tapped: false,
      });
      node.addEventListener("keydown", (event) => this.key(event));
      node.addEventListener("focus", () => {
        if (this.cursor < 0) this.move(0, false);
      });
      node.addEventListener("pointerup", (event) => this.pointer(event));
    }

    show(schema, text) {
      this.points = FG.points(text);
      this.units = schema.unit === "word" ? FG.words(this.points) : FG.sentences(this.points);
      this.sentences = FG.sentences(this.points);
      this.cursor = -1;
      this.anchor = null;
      this.tapped = false;
      this.spans = this.units.map(([start, end], i) =>
        FG.el("span", { class: "w", "data-i": i }, FG.cut(this.points, start, end)),
      );
      this.gaps = this.units.map(([, end], i) =>
        FG.el(
          "span",
          { class: "g" },
          FG.cut(this.points, end, i + 1 < this.units.length ? this.units[i + 1][0] : this.points.length),
        ),
      );
      const head = this.units.length ? FG.cut(this.points, 0, this.units[0][0]) : text;
      this.node.replaceChildren(head, ...this.spans.flatMap((span, i) => [span, this.gaps[i]]));
    }

    // The selection [start, end) in code points, or null. Without a selection it is the unit under the cursor.
    get range() {
      if (this.cursor < 0) return null;
      const from = this.anchor === null ? this.cursor : this.anchor;
      return [this.units[Math.min(from, this.cursor)][0], this.units[Math.max(from, this.cursor)][1]];
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

    // The end of a drag, or a tap. The first tap is one end of the selection, the second tap the other.
    pointer(event) {
      const chosen = window.getSelection();
      if (chosen && !chosen.isCollapsed && chosen.rangeCount) {
        const range = chosen.getRangeAt(0);
        const hit = this.units.map((_, i) => i).filter((i) => this.overlaps(range, this.spans[i]));
        chosen.removeAllRanges();
        if (!hit.length) return;
        this.anchor = hit[0];
        this.cursor = hit[hit.length - 1];
        this.tapped = false;
        this.onChange();
        this.onDrag();
        return;
      }
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
      const text = span.firstChild;
      return (
        range.comparePoint(text, 0) <= 0 &&
        range.comparePoint(text, text.length) >= 0 &&
        !(range.startContainer === text && range.startOffset === text.length) &&
        !(range.endContainer === text && range.endOffset === 0) &&
        range.intersectsNode(span)
      );
    }

    // marks: [{start, end, kind, active}]; earlier: the repeated text [start, end), or null.
    paint(marks, earlier) {
      const range = this.range,
        inside = (unit, r) => r && unit[0] >= r[0] && unit[1] <= r[1];
      this.units.forEach((unit, i) => {
        const mark = marks.find((span) => unit[0] < span.end && span.start < unit[1]);
        const span = this.spans[i],
          gap = this.gaps[i];
        const joined = mark && this.units[i + 1] && this.units[i + 1][1] <= mark.end;
        span.className = "w";
        gap.className = "g";
        for (const [node, on] of [
          [span, mark],
          [gap, joined && mark],
        ]) {
          node.classList.toggle("marked", Boolean(on));
          node.classList.toggle("active", Boolean(on && on.active));
          if (on)
            (node.style.setProperty("--c", on.kind.color),
              node.style.setProperty("--on-c", FG.inkOn(on.kind.color)));
        }
        if (mark && (i === 0 || this.units[i - 1][0] < mark.start)) span.dataset.badge = mark.kind.letter;
        else delete span.dataset.badge;
        span.classList.toggle("selected", this.anchor !== null && inside(unit, range));
        gap.classList.toggle(
          "selected",
          this.anchor !== null &&
            inside(unit, range) &&
            Boolean(this.units[i + 1]) &&
            inside(this.units[i + 1], range),
        );
        span.classList.toggle("cursor", i === this.cursor);
        span.classList.toggle("earlier", Boolean(inside(unit, earlier)));
      });
    }
  };
})(window.FG);
