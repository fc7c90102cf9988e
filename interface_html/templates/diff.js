// Word diffs: the longest common subsequence of words (Myers, 1986), in linear space, and a clean-up for readers.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  // The numbers of the words of both texts: equal words have equal numbers.
  function numbered(before, after) {
    const numbers = new Map();
    const number = (word) => {
      if (!numbers.has(word)) numbers.set(word, numbers.size);
      return numbers.get(word);
    };
    return [Uint32Array.from(before, number), Uint32Array.from(after, number)];
  }

  // One more edit from one end of the texts. `reach[offset + k]` is the furthest place in `a` on the diagonal k, where
  // the place in `b` is k less; -1 if no path of this many edits ends inside the texts. `isEqual(x, y)` compares words.
  function furthest(reach, offset, k, n, m, isEqual) {
    const left = reach[offset + k - 1],
      deleted = left >= 0 && left < n ? left + 1 : -1,
      above = reach[offset + k + 1],
      inserted = above - k <= m ? above : -1;
    let x = Math.max(deleted, inserted);
    if (x < 0) return -1;
    while (x < n && x - k < m && isEqual(x, x - k)) x++;
    return x;
  }

  // The middle of a shortest edit script from a[aFrom..aTo) to b[bFrom..bTo): a point [x, y] that a longest common
  // subsequence passes through. Neither is empty, and they differ in their first and in their last word. `down` and
  // `up` are arrays for the furthest places from the two ends.
  function middle(a, aFrom, aTo, b, bFrom, bTo, down, up) {
    const n = aTo - aFrom,
      m = bTo - bFrom,
      delta = n - m,
      isOdd = delta % 2 !== 0,
      offset = m + 1;
    const forward = (x, y) => a[aFrom + x] === b[bFrom + y],
      backward = (x, y) => a[aTo - 1 - x] === b[bTo - 1 - y];
    down.fill(-1, 0, n + m + 3);
    up.fill(-1, 0, n + m + 3);
    down[offset + 1] = up[offset + 1] = 0;
    for (let d = 0; ; d++) {
      const lowest = Math.max(-d, d % 2 === m % 2 ? -m : 1 - m), // the diagonals that lie inside the texts
        highest = Math.min(d, n);
      for (let k = lowest; k <= highest; k += 2) {
        const x = furthest(down, offset, k, n, m, forward),
          other = delta - k; // the same diagonal, counted from the end
        down[offset + k] = x;
        if (x >= 0 && isOdd && Math.abs(other) < d && up[offset + other] >= n - x)
          return [aFrom + x, bFrom + x - k];
      }
      for (let k = lowest; k <= highest; k += 2) {
        const x = furthest(up, offset, k, n, m, backward),
          other = delta - k;
        up[offset + k] = x;
        if (x >= 0 && !isOdd && Math.abs(other) <= d && down[offset + other] >= n - x)
          return [aTo - x, bTo - x + k];
      }
    }
  }

  // The pairs [i, j] of a longest common subsequence of two lists of numbers, in order.
  FG.matches = function (a, b) {
    const pairs = [],
      size = a.length + b.length + 3,
      down = new Int32Array(size),
      up = new Int32Array(size);
    const ranges = [[0, a.length, 0, b.length]]; // a stack: the ranges that are still to compare, the first one on top
    while (ranges.length) {
      let [aFrom, aTo, bFrom, bTo] = ranges.pop();
      while (aFrom < aTo && bFrom < bTo && a[aFrom] === b[bFrom]) pairs.push([aFrom++, bFrom++]);
      const tail = [];
      while (aFrom < aTo && bFrom < bTo && a[aTo - 1] === b[bTo - 1]) tail.push([--aTo, --bTo]);
      // Ranges without a common word at their ends are split. A tail waits as a range of its own, which matches wholly.
      if (tail.length) ranges.push([aTo, aTo + tail.length, bTo, bTo + tail.length]);
      if (aFrom === aTo || bFrom === bTo) continue;
      const [x, y] = middle(a, aFrom, aTo, b, bFrom, bTo, down, up);
      ranges.push([x, aTo, y, bTo], [aFrom, x, bFrom, y]);
    }
    return pairs;
  };

  // What a text consists of for a diff: its code points, its units as [start, end), and their words.
  function tokens(text) {
    const points = FG.points(text),
      units = FG.units(points);
    return { points, units, words: units.map(([start, end]) => FG.cut(points, start, end)) };
  }

  const lengthOf = (words) => words.reduce((sum, word) => sum + word.length, 0);

  // The runs of words that both texts have: {a, b, count, length}, the first word in each text and the size.
  function commonRuns(a, b) {
    const runs = [];
    for (const [i, j] of FG.matches(...numbered(a.words, b.words))) {
      const last = runs[runs.length - 1];
      if (last && last.a + last.count === i && last.b + last.count === j) last.count++;
      else runs.push({ a: i, b: j, count: 1 });
    }
    for (const run of runs) run.length = lengthOf(a.words.slice(run.a, run.a + run.count));
    return runs;
  }

  // Drop the runs that only break a change into pieces: those not longer than what changed before and after them.
  function cleaned(runs, a, b) {
    const first = { a: 0, b: 0, count: 0 },
      last = { a: a.words.length, b: b.words.length, count: 0 };
    const changed = (run, next) =>
      Math.max(
        lengthOf(a.words.slice(run.a + run.count, next.a)),
        lengthOf(b.words.slice(run.b + run.count, next.b)),
      );
    const isKept = (run, i, list) =>
      run.length > changed(list[i - 1] || first, run) || run.length > changed(run, list[i + 1] || last);
    for (;;) {
      const kept = runs.filter(isKept);
      if (kept.length === runs.length) return kept;
      runs = kept;
    }
  }

  // A word diff: [{op: "same" | "del" | "ins", text, start, end}]. Offsets count in `before`; an insertion has
  // start = end. With `exact`, all words of a longest common subsequence stay the same. Without, the parts are fewer
  // and easier to read.
  FG.diff = function (before, after, exact) {
    const a = tokens(before),
      b = tokens(after),
      parts = [];
    const put = (op, text, start, end) => {
      const last = parts[parts.length - 1];
      if (!text) return;
      if (last && last.op === op) {
        last.text += text;
        last.end = end;
      } else parts.push({ op, text, start, end });
    };
    // The part between two words that stay. Equal space at its start and at its end stays too.
    const putChange = (x, aTo, y, bTo) => {
      const isSameSpace = (i, j) => a.points[i] === b.points[j] && FG.isSpace(a.points[i]);
      const from = x;
      while (x < aTo && y < bTo && isSameSpace(x, y)) {
        x++;
        y++;
      }
      let tail = 0;
      while (aTo - tail > x && bTo - tail > y && isSameSpace(aTo - tail - 1, bTo - tail - 1)) tail++;
      put("same", FG.cut(a.points, from, x), from, x);
      put("del", FG.cut(a.points, x, aTo - tail), x, aTo - tail);
      put("ins", FG.cut(b.points, y, bTo - tail), aTo - tail, aTo - tail);
      put("same", FG.cut(a.points, aTo - tail, aTo), aTo - tail, aTo);
    };
    let x = 0,
      y = 0;
    const runs = commonRuns(a, b);
    for (const run of exact ? runs : cleaned(runs, a, b))
      for (let k = 0; k < run.count; k++) {
        const [start, end] = a.units[run.a + k],
          other = b.units[run.b + k];
        putChange(x, start, y, other[0]);
        put("same", FG.cut(a.points, start, end), start, end);
        [x, y] = [end, other[1]];
      }
    putChange(x, a.points.length, y, b.points.length);
    return parts;
  };
})(window.FG);
