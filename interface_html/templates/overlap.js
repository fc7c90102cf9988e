// Marks that overlap, in tasks whose schema allows it: which mark a word belongs to, and how several are painted.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  const LINE = 4; // pixels from one line below a word to the next

  // The mark at [start, end) of a side's text: its index, or -1. Of several, the active one, or else the shortest: the
  // inner one.
  FG.markAt = function (schema, errors, side, start, end, active = -1) {
    if (!schema.overlap) return FG.overlapOf(errors, start, end, undefined, side);
    const isHere = (error) => FG.sideOf(error) === side && error.start < end && start < error.end,
      here = [...errors.keys()].filter((i) => isHere(errors[i]));
    if (here.includes(active)) return active;
    const length = (i) => errors[i].end - errors[i].start;
    return here.reduce((best, i) => (best < 0 || length(i) < length(best) ? i : best), -1);
  };

  // The index of an error of a side with the same span and kind, or -1.
  FG.sameMark = (errors, [start, end], kind, except, side) =>
    errors.findIndex(
      (other, i) =>
        i !== except && FG.sideOf(other) === side && other.start === start && other.end === end && other["error type"] === kind.name,
    );

  // For each mark the number of its line, such that overlapping marks have different lines.
  FG.lanes = function (marks) {
    const order = [...marks.keys()].sort((a, b) => marks[a].start - marks[b].start || a - b),
      ends = [], // of the last mark on each line
      lanes = [];
    for (const i of order) {
      const free = ends.findIndex((end) => end <= marks[i].start),
        lane = free < 0 ? ends.length : free;
      ends[lane] = marks[i].end;
      lanes[i] = lane;
    }
    return lanes;
  };

  // For each unit the marks on it, with their `lane`, in the order of lines.
  FG.marksOn = function (units, marks) {
    const lanes = FG.lanes(marks),
      on = units.map(() => []);
    marks.forEach((mark, k) => {
      const first = units.findIndex((unit) => unit[1] > mark.start);
      for (let i = first; i >= 0 && i < units.length && units[i][0] < mark.end; i++)
        on[i].push({ ...mark, lane: lanes[k] });
    });
    for (const list of on) list.sort((a, b) => a.lane - b.lane);
    return on;
  };

  // Paint a line below a node for each of several marks, [color, lane, whether it is liked: dotted]; a single mark is
  // painted by the style sheet.
  FG.paintLines = function (node, lines) {
    node.classList.toggle("stacked", lines.length > 1);
    if (lines.length < 2) return;
    const layers = lines.map(([color, lane, isDotted]) => {
      const mixed = `color-mix(in srgb, ${color} 70%, var(--ink))`,
        line = isDotted
          ? `repeating-linear-gradient(90deg, ${mixed} 0 3px, transparent 3px 6px)`
          : `linear-gradient(${mixed}, ${mixed})`;
      return `${line} 0 calc(100% - ${lane * LINE}px) / 100% 3px no-repeat`;
    });
    node.style.setProperty("--lines", layers.join(", "));
    node.style.setProperty("--depth", `${(lines[lines.length - 1][1] + 1) * LINE}px`);
  };
})(window.FG);
