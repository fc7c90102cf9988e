// Pure functions: texts as code points, JSON as Python writes it, patches and SHA-256.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  // White space as in Python's str.isspace. JavaScript's \s differs: it has U+FEFF and lacks U+001C-1F and U+0085.
  const SPACE = /^[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]$/;
  FG.isSpace = (c) => SPACE.test(c);

  // A text as an array of code points. All offsets count these.
  FG.points = (text) => Array.from(text);
  FG.cut = (points, start, end) => points.slice(start, end).join("");

  FG.words = function (points) {
    const words = [];
    let start = -1;
    points.forEach((c, i) => {
      if (FG.isSpace(c)) {
        if (start >= 0) words.push([start, i]);
        start = -1;
      } else if (start < 0) start = i;
    });
    if (start >= 0) words.push([start, points.length]);
    return words;
  };

  // Scripts that are written without spaces. The same ranges as in fgrlhf/words.py.
  const UNSPACED = [
    [0x0e00, 0x0fff],
    [0x1000, 0x109f],
    [0x1780, 0x17ff],
    [0x1950, 0x19ff],
    [0x1a20, 0x1aaf],
    [0x1b00, 0x1b7f],
    [0x2e80, 0x2fdf],
    [0x3005, 0x3007],
    [0x3021, 0x3029],
    [0x3038, 0x303b],
    [0x3041, 0x309f],
    [0x30a1, 0x30ff],
    [0x3105, 0x312f],
    [0x31a0, 0x31bf],
    [0x31f0, 0x31ff],
    [0x3400, 0x4dbf],
    [0x4e00, 0x9fff],
    [0xa980, 0xa9ff],
    [0xaa60, 0xaadf],
    [0xf900, 0xfaff],
    [0xff66, 0xff9f],
    [0x1b000, 0x1b16f],
    [0x20000, 0x323af],
  ];
  FG.isUnspaced = function (c) {
    const code = c.codePointAt(0);
    return code >= 0x0e00 && UNSPACED.some(([first, last]) => code >= first && code <= last);
  };

  // Whether a span may start or end inside a word, between points[at - 1] and points[at]: one of the two must belong to
  // a script that is written without spaces, or be a full-width mark.
  FG.isInnerBoundary = function (points, at) {
    if (at <= 0 || at >= points.length) return false;
    const before = points[at - 1],
      after = points[at];
    if (FG.isSpace(before) || FG.isSpace(after)) return false;
    return [before, after].some((c) => FG.isUnspaced(c) || "、。！（），：；？".includes(c));
  };

  // The places inside the word [start, end) where the browser's dictionaries end a word.
  function innerBounds(points, [start, end]) {
    const bounds = [];
    if (!window.Intl || !Intl.Segmenter) {
      for (let at = start + 1; at < end; at++) if (!/^\p{M}$/u.test(points[at])) bounds.push(at);
      return bounds;
    }
    const segmenter = new Intl.Segmenter(undefined, { granularity: "word" });
    let at = start;
    for (const { segment } of segmenter.segment(FG.cut(points, start, end))) {
      at += FG.points(segment).length;
      bounds.push(at);
    }
    return bounds;
  }

  // The words that an annotator selects: as FG.words, and shorter ones in scripts that are written without spaces.
  FG.units = function (points) {
    const units = [];
    for (const word of FG.words(points)) {
      let start = word[0];
      if (points.slice(...word).some(FG.isUnspaced))
        for (const at of innerBounds(points, word))
          if (at > start && at < word[1] && FG.isInnerBoundary(points, at)) {
            units.push([start, at]);
            start = at;
          }
      units.push([start, word[1]]);
    }
    return units;
  };

  FG.strip = function (text) {
    const points = FG.points(text);
    let start = 0,
      end = points.length;
    while (start < end && FG.isSpace(points[start])) start++;
    while (end > start && FG.isSpace(points[end - 1])) end--;
    return FG.cut(points, start, end);
  };

  // The bytes of Python's json.dumps(value, indent=2).
  FG.pythonJson = (value) =>
    JSON.stringify(value, null, 2).replace(
      /[\x7f-\uffff]/g,
      (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"),
    );

  // A random order of 0..n-1, all equally likely.
  FG.draw = function (n) {
    const drawn = Array.from({ length: n }, (_, i) => i),
      random = new Uint32Array(1);
    for (let i = n - 1; i > 0; i--) {
      const limit = 4294967296 - (4294967296 % (i + 1));
      do {
        crypto.getRandomValues(random);
      } while (random[0] >= limit);
      const j = random[0] % (i + 1);
      [drawn[i], drawn[j]] = [drawn[j], drawn[i]];
    }
    return drawn;
  };

  FG.clone = (value) => JSON.parse(JSON.stringify(value));
  FG.same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

  // A text field turns "\r\n" and "\r" into "\n". A text that was not edited must stay unchanged, and an edited one keeps
  // its kind of line ends, if it has only one.
  FG.fromField = function (value, original) {
    if (value === original.replace(/\r\n?/g, "\n")) return original;
    const [ends, ...others] = new Set(original.match(/\r\n|\r|\n/g));
    return ends && !others.length ? value.replaceAll("\n", ends) : value;
  };

  const isFirstHalf = (unit) => unit >= "\ud800" && unit <= "\udbff";
  const isSecondHalf = (unit) => unit >= "\udc00" && unit <= "\udfff";

  // The changes from one JSON object to another, small enough to store hundreds: [key, before, after] for each changed
  // key, or for texts [key, position, removed, inserted].
  FG.patch = function (before, after) {
    const changes = [];
    for (const key of Object.keys({ ...before, ...after })) {
      const a = before[key],
        b = after[key];
      if (FG.same(a, b)) continue;
      if (typeof a !== "string" || typeof b !== "string") {
        changes.push([key, a, b]);
        continue;
      }
      let head = 0,
        tail = 0;
      while (head < a.length && head < b.length && a[head] === b[head]) head++;
      while (
        tail < a.length - head &&
        tail < b.length - head &&
        a[a.length - 1 - tail] === b[b.length - 1 - tail]
      )
        tail++;
      // A character beyond the basic plane has two units. The server refuses half of one.
      if (head > 0 && isFirstHalf(a[head - 1])) head--;
      if (tail > 0 && isSecondHalf(a[a.length - tail])) tail--;
      changes.push([key, head, a.slice(head, a.length - tail), b.slice(head, b.length - tail)]);
    }
    return changes;
  };

  FG.applyPatch = function (value, patch, back) {
    const result = FG.clone(value);
    for (const change of patch) {
      const key = change[0];
      if (change.length === 3) {
        const value = change[back ? 1 : 2] ?? null; // a key that the document did not have
        if (value === null) delete result[key];
        else result[key] = FG.clone(value);
      } else {
        const [, at, removed, inserted] = change;
        const [old, fresh] = back ? [inserted, removed] : [removed, inserted];
        result[key] = result[key].slice(0, at) + fresh + result[key].slice(at + old.length);
      }
    }
    return result;
  };

  // The JSON object that has what `mine` and what `theirs` changed in `base`, key by key; null if both changed the same key.
  FG.joined = function (base, mine, theirs) {
    if (FG.same(mine, base)) return theirs;
    if (FG.same(theirs, base)) return mine;
    const result = {};
    for (const key of Object.keys({ ...theirs, ...mine })) {
      const isMine = !FG.same(mine[key], base[key]),
        isTheirs = !FG.same(theirs[key], base[key]);
      if (isMine && isTheirs && !FG.same(mine[key], theirs[key])) return null;
      const value = isMine ? mine[key] : theirs[key];
      if (value !== undefined) result[key] = value;
    }
    return result;
  };

  // ---- SHA-256 (FIPS 180-4): crypto.subtle is missing on pages that are served to other hosts without TLS -------
  const primes = [];
  for (let n = 2; primes.length < 64; n++) if (primes.every((p) => n % p)) primes.push(n);
  const fraction = (x) => ((x - Math.floor(x)) * 4294967296) >>> 0;
  const K = Uint32Array.from(primes, (p) => fraction(Math.cbrt(p)));
  const H0 = Uint32Array.from(primes.slice(0, 8), (p) => fraction(Math.sqrt(p)));
  const turn = (x, n) => (x >>> n) | (x << (32 - n));

  // One block of 64 bytes. Typed arrays and 32-bit integers (`| 0`) keep this fast: large files have millions of bytes.
  function addBlock(H, w, view, at) {
    for (let i = 0; i < 16; i++) w[i] = view.getUint32(at + 4 * i);
    for (let i = 16; i < 64; i++) {
      const x = w[i - 15],
        y = w[i - 2];
      w[i] =
        (w[i - 16] +
          (turn(x, 7) ^ turn(x, 18) ^ (x >>> 3)) +
          w[i - 7] +
          (turn(y, 17) ^ turn(y, 19) ^ (y >>> 10))) |
        0;
    }
    let a = H[0],
      b = H[1],
      c = H[2],
      d = H[3],
      e = H[4],
      f = H[5],
      g = H[6],
      h = H[7];
    for (let i = 0; i < 64; i++) {
      const s = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i]) | 0;
      const t = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + s) | 0;
      d = c;
      c = b;
      b = a;
      a = (s + t) | 0;
    }
    H[0] += a;
    H[1] += b;
    H[2] += c;
    H[3] += d;
    H[4] += e;
    H[5] += f;
    H[6] += g;
    H[7] += h;
  }

  FG.sha256 = function (text) {
    const data = new TextEncoder().encode(text);
    const blocks = new Uint8Array(((data.length + 72) >> 6) << 6);
    blocks.set(data);
    blocks[data.length] = 128;
    const view = new DataView(blocks.buffer),
      H = H0.slice(),
      w = new Int32Array(64);
    view.setUint32(blocks.length - 8, Math.floor(data.length / 536870912));
    view.setUint32(blocks.length - 4, data.length << 3);
    for (let at = 0; at < blocks.length; at += 64) addBlock(H, w, view, at);
    return Array.from(H, (x) => x.toString(16).padStart(8, "0")).join("");
  };
})(window.FG);
