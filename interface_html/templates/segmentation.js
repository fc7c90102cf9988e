// Sentences by the rules of fgrlhf/segmentation.py, which divides the responses of training: FG.sentences. The functions
// have the names of that file, and tests/test_segmentation.py compares the two on the same texts.
"use strict";
window.FG = window.FG || {};
(function (FG) {
  // White space as in Python's str.isspace, without the line feed and with it; see core.js.
  const BLANK = "\\t\\v-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000",
    S = `\\n${BLANK}`,
    LETTER = "\\p{L}\\p{Nl}\\p{No}"; // of a word, and no decimal digit
  const escaped = (marks) => marks.replace(/[\\\]^-]/g, "\\$&");
  const pattern = (source, flags = "") => new RegExp(source.replace(/\s+/g, ""), `u${flags}`);

  const COMMAS = ",;，；、､،؛՝፣፤၊";
  const CLOSERS = "\"'”’»›)]}」』）】》〉〕］｝〗*_`";
  const OPENERS = "\"'“‘«‹„([{「『（【《〈〔［*_`¿¡–—-";
  const ALWAYS = "。！？．｡।॥۔؟።፧។៕။։‼⁇⁈⁉"; // need no space after them
  const TERMINAL = `[.!?…;\\u037e${ALWAYS}]+`;
  const TERMINALS = pattern(TERMINAL, "g"),
    ALL_TERMINAL = pattern(`^${TERMINAL}$`),
    CLOSING = pattern(`(?:[${escaped(CLOSERS)}]|[${S}]?[»›]|“(?=[${S}]|$)|\\[\\p{Nd}{1,3}\\])+`, "y"),
    NEWLINE = /\r\n|[\n\r\v\f\x85\u2028\u2029]/g;

  const FENCE = pattern(
    `(?<![^\\n]) [${BLANK}]* (\`\`\`+|~~~+) [^\\n]*
     (?: \\n (?![${BLANK}]*\\1) [^\\n]* )*
     (?: \\n [${BLANK}]* \\1 [\`~]* )?`,
    "g",
  );
  const UNITS = pattern(
    `\\$\\$ [^$]{1,2000} \\$\\$
     | \\\\\\[ (?: (?!\\\\[\\[\\]]) [^] ){1,2000} \\\\\\]
     | \\\\\\( (?: (?!\\\\[\\(\\)]) [^] ){1,1000} \\\\\\)
     | \\$ (?=[^${S}$]) [^$\\n]{1,500} (?<=[^${S}]) \\$ (?!\\p{Nd})
     | \`\` [^\\n]{1,500}? \`\`
     | \` [^\`\\n]{1,500} \`
     | ។ល។`,
    "g",
  );
  const NUMERAL = "(?:\\p{Nd}{1,4}|[A-Za-z]|[ivxIVX]{1,6})";
  const ITEM = pattern(
    `^ [${S}]* (?: >[${S}]* )*
     (?: [\\-*+•‣▪●◦·–—] [${S}]
       | \\*{0,2} \\(? ${NUMERAL} [.\\)] \\*{0,2} (?:[${S}]|$)
       | \\p{Nd}{1,4} [.\\)．）、]
       | [（\\(] (?:\\p{Nd}{1,4}|[一二三四五六七八九十]+) [）\\)]
       | [一二三四五六七八九十]+ [、．]
       | [\\u2460-\\u2473] )`,
  );
  const BARE_NUMBER = pattern(`^(?:[^\\p{L}\\p{N}])*${NUMERAL}[.\\)．]\\**$`),
    NUMBER_AFTER_COLON = pattern(`[:：][${S}]+\\p{Nd}{1,3}\\.$`),
    HEADING = pattern(`^[${BLANK}]{0,3}#{1,6}[${S}]`),
    TABLE_ROW = pattern(`^[${S}]*\\|[^\\n]*\\|$`),
    TABLE_RULE = pattern(`^[${S}]*\\|?[${S}]*:?-+:?[${S}]*(?:\\|[${S}]*:?-+:?[${S}]*)+\\|?[${S}]*$`),
    WORD_BEFORE = pattern(`[^${S}\\(\\[\\{"“'‘«„/–—]{1,24}(?=\\n?$)`),
    FIRST_WORD = pattern(
      `[${escaped(OPENERS)}${S}]*([${LETTER}]+(?:['’][${LETTER}]+)?|\\p{Nd})?`,
      "y",
    ),
    ACRONYM = pattern(`^(?:[${LETTER}]\\.)+[${LETTER}]$`);
  const SHORT_LINE = 40, // characters; shorter lines are not wrapped ones
    FULL_LINE = 60;

  const wordsIn = (text) => new Set(text.trim().split(/\s+/));
  const BEFORE_NAME = wordsIn(`
    mr mrs ms dr prof st rev hon sen rep gov pres gen col maj capt cmdr lt sgt messrs mt ft
    mme mlle sr.a sra srta dra ing lic hr fr frau dott sig e.g i.e eg ie cf viz vs v resp z.b d.h
    u.a bzw ca approx p.ej p.ex т.е напр см ср им ул пл пр акад проф д-р г-н г-жа
    डॉ प्रो पं श्री सं`);
  const BEFORE_NUMBER = wordsIn(`
    no nos nr num núm fig figs eq eqs sec secs ch chap vol vols art ex pp p par para tab tbl app
    op lines ver v abb kap bd s стр рис гл табл п пп ст вып`);
  const MAY_END = wordsIn(`
    al etc inc ltd co corp bros jr sr esq a.m p.m am pm ph.d m.d b.a m.a u.s u.k u.n e.u d.c est
    dept univ assn ave blvd rd jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri
    sat sun usw etc ff bzgl т.д т.п др пр г гг в вв руб коп тыс млн млрд чел`);
  const MONTHS = wordsIn(`
    januar februar märz april mai juni juli august september oktober november dezember
    jahrhundert`);
  const STARTERS = wordsIn(`
    i you he she it we they the a an this that these those there then here now in on at by to of
    for from with as after before since but and or so yet if when while where who what which why
    how however because although my your his her its our their no not yes all both each some many
    most one two also finally first second next thus therefore instead please let is are was were do
    does did can could will would should i'm it's he's she's that's there's they're we're
    you're don't
    он она оно они это эта этот эти мы вы ты я в на но и а затем потом там тут как что когда если
    el la los las un una ella ellos es le les il elle ils elles un une c'est der die das er sie es
    wir ihr und aber dann`);
  FG.SENTENCE_WORDS = { BEFORE_NAME, BEFORE_NUMBER, MAY_END, MONTHS, STARTERS };

  const charAt = (text, at) => (at < text.length ? String.fromCodePoint(text.codePointAt(at)) : "");
  function charBefore(text, at) {
    const isSecondHalf = at > 1 && /[\udc00-\udfff]/.test(text[at - 1]);
    return at > 0 ? charAt(text, isSecondHalf ? at - 2 : at - 1) : "";
  }
  const isLower = (c) => /^\p{Lowercase}$/u.test(c);
  const isDigit = (text) => /^\p{Nd}+$/u.test(text);
  const hasWord = (text) => /[\p{L}\p{N}]/u.test(text);
  const isUnspaced = (c) => c !== "" && FG.isUnspaced(c);
  const isSpace = (c) => c !== "" && FG.isSpace(c);

  function matchAt(regex, text, at) {
    regex.lastIndex = at;
    return regex.exec(text);
  }

  // All matches in text[from, to) as [start, end].
  function spansOf(regex, text, from = 0, to = text.length) {
    const head = text.slice(0, to),
      spans = [];
    regex.lastIndex = from;
    for (let match; (match = regex.exec(head)); ) spans.push([match.index, match.index + match[0].length]);
    return spans;
  }

  function trimmed(text, start, end) {
    while (start < end && isSpace(text[start])) start++;
    while (end > start && isSpace(text[end - 1])) end--;
    return [start, end];
  }

  // ---- units without a boundary inside -----------------------------------------------------------------------
  function unitsOf(text) {
    const fences = spansOf(FENCE, text).map(([start, end]) => trimmed(text, start, end)),
      spans = [];
    let begin = 0;
    for (const [start, end] of [...fences, [text.length, text.length]]) {
      spans.push(...spansOf(UNITS, text, begin, start));
      if (start < end) spans.push([start, end]);
      begin = end;
    }
    return spans;
  }

  // The last unit that begins at or before a place.
  function unitAt(units, at) {
    let low = 0,
      high = units.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (units[middle][0] <= at) low = middle + 1;
      else high = middle;
    }
    return units[low - 1];
  }

  // The end of the unit in which the boundary before character `at` lies; null if in none.
  function endAround(units, at) {
    const unit = unitAt(units, at - 1);
    return unit && at < unit[1] ? unit[1] : null;
  }

  // ---- blocks ------------------------------------------------------------------------------------------------
  function linesOf(text, units) {
    const bounds = [0];
    for (const [, end] of spansOf(NEWLINE, text)) if (endAround(units, end) === null) bounds.push(end);
    bounds.push(text.length);
    return bounds.slice(1).map((end, i) => {
      const line = trimmed(text, bounds[i], end);
      return line[0] < line[1] ? line : [bounds[i], bounds[i]];
    });
  }

  // The blocks as [start, end, whether the block is one sentence].
  function blocksOf(text, units) {
    const lines = linesOf(text, units),
      rows = tableRows(lines.map(([start, end]) => text.slice(start, end))),
      blocks = [];
    let continues = false; // whether the last block may continue
    lines.forEach(([start, end], n) => {
      if (start === end) {
        continues = false;
        return;
      }
      const line = text.slice(start, end),
        unit = unitAt(units, start),
        isUnit = Boolean(unit) && unit[0] === start && unit[1] === end,
        isWhole = isUnit || rows.has(n) || HEADING.test(line),
        begins = isWhole || ITEM.test(line);
      if (continues && !begins && isWrapped(text.slice(...lines[n - 1]), line)) {
        const last = blocks[blocks.length - 1];
        blocks[blocks.length - 1] = [last[0], end, false];
      } else blocks.push([start, end, isWhole]);
      continues = !isWhole;
    });
    return blocks;
  }

  function tableRows(lines) {
    const rows = new Set();
    lines.forEach((line, n) => {
      if (TABLE_ROW.test(line)) rows.add(n);
      if (!(n && lines[n - 1].includes("|") && TABLE_RULE.test(line))) return;
      rows.add(n - 1).add(n);
      for (let below = n + 1; below < lines.length && lines[below].includes("|"); below++) rows.add(below);
    });
    return rows;
  }

  function isWrapped(line, following) {
    if (BARE_NUMBER.test(line) || COMMAS.includes(line.slice(-1))) return true;
    let end = line.length;
    while (end > 0 && CLOSERS.includes(line[end - 1])) end--;
    const last = charBefore(line, end),
      size = FG.points(line).length,
      ended = !last || ":：".includes(last) || ALL_TERMINAL.test(last);
    if (ended || size < SHORT_LINE || isUnspaced(last)) return false;
    return isLower(charAt(following, 0)) || size >= FULL_LINE;
  }

  // ---- sentences ---------------------------------------------------------------------------------------------
  function sentencesOfBlock(text, start, end, units) {
    const head = text.slice(0, end),
      spans = [];
    let at = start;
    for (let match; (match = matchAt(TERMINALS, head, at)); ) {
      const marks = { start: match.index, end: match.index + match[0].length, text: match[0] };
      at = marks.end;
      const inside = endAround(units, marks.start + 1);
      if (inside !== null) {
        at = Math.max(at, inside);
        continue;
      }
      const closing = matchAt(CLOSING, head, at);
      if (closing && !opens(head, at, at + closing[0].length, start)) at += closing[0].length;
      if (endsSentence(head, start, marks, at)) {
        spans.push(trimmed(text, start, at));
        start = at;
        while (start < end && isSpace(text[start])) start++;
      }
    }
    if (start < end) spans.push([start, end]);
    return spans;
  }

  // Whether the marks [at, after) that could close a quote or emphasis open one instead.
  function opens(text, at, after, start) {
    const following = charAt(text, after);
    return hasWord(following) && !isUnspaced(following) && !text.slice(start, at).includes(text[at]);
  }

  function endsSentence(text, start, marks, at) {
    if (at === text.length) return true;
    const following = charAt(text, at);
    if ([...marks.text].some((mark) => ALWAYS.includes(mark))) return fullMarkEnds(text, marks, at, following);
    const before = marks.start > start ? charBefore(text, marks.start) : " ",
      last = marks.text.slice(-1),
      unspaced = isUnspaced(before) || isUnspaced(following);
    if (!isSpace(following) && !(unspaced && ("!?".includes(last) || isUnspaced(before)))) return false;
    if (!isSpace(following) && ".…".includes(last) && !isUnspaced(following)) return false;
    const first = matchAt(FIRST_WORD, text, at)?.[1] || "",
      isSmall = isLower(charAt(first, 0));
    if (at > marks.end && isSmall) return false; // "Why?" she asked
    if (";\u037e".includes(last)) return before >= "\u0370" && before <= "\u03ff"; // asks in Greek
    if (marks.text.includes("…") || marks.text.endsWith("..")) return !isSmall && !isUnspaced(following);
    return marks.text !== "." || stopEnds(text, start, marks.start, first);
  }

  function fullMarkEnds(text, marks, at, following) {
    if (COMMAS.includes(following)) return false;
    if (marks.text === "．" && isDigit(charBefore(text, marks.start)) && isDigit(following)) return false;
    const quoted = at > marks.end && "」』".includes(text[at - 1]);
    return !(quoted && "とっ".includes(following));
  }

  // Whether a single `.` at `stop` ends the sentence that begins at `start`, before the word or digit `first`.
  function stopEnds(text, start, stop, first) {
    const sentence = text.slice(start, stop + 1);
    if (BARE_NUMBER.test(sentence) || NUMBER_AFTER_COLON.test(sentence.slice(-40))) return false;
    const word = WORD_BEFORE.exec(text.slice(Math.max(start, stop - 50), stop))?.[0] || "",
      lowered = word.toLowerCase(),
      initial = charAt(first, 0),
      isStart = STARTERS.has(first.toLowerCase()) && !isLower(initial);
    if (isDigit(lowered)) return !(FG.points(lowered).length < 3 && MONTHS.has(first.toLowerCase()));
    if ("гв".includes(lowered) && lowered.length === 1) {
      const shorter = text.slice(0, stop).replace(/[гв ]+$/, "");
      if (!isDigit(charBefore(shorter, shorter.length))) return false;
    }
    if (BEFORE_NUMBER.has(lowered) && (isDigit(first) || word === "pp" || word === "p")) return false;
    if (BEFORE_NAME.has(lowered) && !(lowered === "v" && isDigit(first))) return false;
    if (/^\p{L}$/u.test(word) && !isUnspaced(word)) return isStart;
    if (MAY_END.has(lowered)) {
      if (isLower(initial) || isDigit(first) || !first) return false;
      const isAscii = /^[\x00-\x7f]*$/.test(word);
      return isStart || ["etc", "a.m", "p.m", "am", "pm"].includes(lowered) || !isAscii;
    }
    return ACRONYM.test(word) ? isStart : true;
  }

  // The spans, where those without a letter or digit have joined the one before, or after.
  function withoutWordless(text, spans) {
    const joined = [];
    let waiting = -1; // where pieces begin that have nothing before them to join
    for (const [start, end] of spans) {
      if (hasWord(text.slice(start, end))) {
        joined.push([waiting < 0 ? start : waiting, end]);
        waiting = -1;
      } else if (joined.length) joined[joined.length - 1][1] = end;
      else if (waiting < 0) waiting = start;
    }
    if (waiting >= 0) joined.push([waiting, spans[spans.length - 1][1]]);
    return joined;
  }

  // The places of UTF-16 units, in ascending order, as code points.
  function inPoints(points, places) {
    let unit = 0,
      point = 0;
    return places.map((place) => {
      while (unit < place) unit += points[point++].length;
      return point;
    });
  }

  const known = new WeakMap(); // the sentences of each array of code points

  // Half-open spans of the sentences of an array of code points, as fgrlhf.segmentation.sentences.
  FG.sentences = function (points) {
    if (!known.has(points)) {
      const text = points.join(""),
        units = unitsOf(text),
        spans = blocksOf(text, units).flatMap(([start, end, isWhole]) =>
          isWhole ? [[start, end]] : sentencesOfBlock(text, start, end, units),
        ),
        bounds = inPoints(points, withoutWordless(text, spans).flat());
      known.set(
        points,
        bounds.flatMap((start, i) => (i % 2 ? [] : [[start, bounds[i + 1]]])),
      );
    }
    return known.get(points);
  };
})(window.FG);
