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
  const CLOSERS = "\"'”’»›)]}」』）】》〉〕］｝〗*_`~";
  const OPENERS = "\"'“‘«‹»›„([{「『（【《〈〔［*_`¿¡–—-";
  const ALWAYS = "。！？．｡।॥۔؟።፧།༎༏༐༑។៕။։‼⁇⁈⁉‽܀܁܂߹᙮᠃᠉᪨᪩᪪᪫᭚᭛᭞᭟᰻᰼᱾᱿꓿꘎꘏꛳꛷꣎꣏꤯꧉꩝꩞꩟꯫﹖﹗";
  const TERMINAL = `(?:[.!?…;\\u037e${ALWAYS}]|፡፡)+`;
  const TERMINALS = pattern(TERMINAL, "g"),
    ALL_TERMINAL = pattern(`^${TERMINAL}$`),
    CLOSING = pattern(
      `(?: [${escaped(CLOSERS)}]
         | [${S}][»›](?![\\p{L}\\p{N}_])
         | [“«‹](?=[${S}]|$)
         | \\[ \\^? \\p{Nd}{1,3} (?:[,–\\-][${S}]?\\p{Nd}{1,3})* \\]
         | [\\u00b2\\u00b3\\u00b9\\u2070-\\u2079]+ | \\^\\p{Nd}{1,3}(?![\\p{L}\\p{N}_])
         | 【[^【】\\n]{1,60}】
         | </[A-Za-z][A-Za-z0-9]*> | <br[${S}]?/?>
         | [\\u200b\\u200e\\u200f\\u2060\\ufeff] )+`,
      "y",
    ),
    EMOJI = pattern(
      `(?: [${BLANK}]? (?:
         [\\u2639\\u263a\\u2665\\u2728\\u2764\\u2b50\\u{1f308}\\u{1f31f}\\u{1f388}-\\u{1f38a}
          \\u{1f44b}-\\u{1f450}\\u{1f493}-\\u{1f49f}\\u{1f4aa}\\u{1f4af}\\u{1f525}\\u{1f5a4}
          \\u{1f600}-\\u{1f64f}\\u{1f680}\\u{1f90c}-\\u{1f93a}\\u{1f970}-\\u{1f97a}\\u{1f9e1}]
         [\\ufe0f\\u200d\\u{1f3fb}-\\u{1f3ff}]*
         | (?: [:;=]['^\\-]?[\\(\\)DPpOo*/\\\\\\|]+ | [xX]D+ | <3+ ) (?![\\p{L}\\p{N}_])
         | \\(?\\^[_\\-]?\\^\\)?;* | T_T | [ㅋㅎㅠㅜ]+ ) )+`,
      "y",
    ),
    SPACED_CLAUSES = /[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\uaa60-\uaa7f]/,
    TAG = /<\/?[A-Za-z][^<>\n]{0,200}>/g,
    BLOCK_TAG = pattern(
      `</?(?:br|p|li|ul|ol|div|h[1-6]|tr|td|th|table|blockquote)(?![\\p{L}\\p{N}_])`,
      "y",
    ),
    PARTICLE = pattern(
      `と(?!ころ|にかく|ても) | っ | が(?!ん) | を | の(?!ち) | に(?!ん) | は(?![いじっ])
       | も(?![うしち]) | で(?![もは]) | な[のど] | だ(?!か|が)
       | [^${S}，。！？：“”「」『』]{1,6} (?<!知)[说說问問道答喊叫想] [，。！]`,
      "y",
    ),
    NEWLINE = /\n/g,
    OTHER_BREAK = /\r(?!\n)|[\v\f\x85\u2028\u2029]/g; // read as line feeds

  const FENCE = pattern(
    `(?<![^\\n]) [${BLANK}]* (?: (?: > | [\\-*+•] | \\p{Nd}{1,3}[.\\)] ) [${BLANK}]* )*
       (?<fence> \`\`\`+ (?=[^\`\\n]*(?![^\\n])) | ~~~+ ) [^\\n]*
       (?: \\n (?! (?:>|[${BLANK}])* \\k<fence> [\`~]* [${BLANK}]* (?![^\\n]) ) [^\\n]* )*
       (?: \\n (?:>|[${BLANK}])* \\k<fence> [\`~]* [${BLANK}]* (?![^\\n]) )?
     | (?<![^\\n]) [^\`\\n]+ (?<glued>\`\`\`+) [\\p{L}\\p{N}_+#\\-]* [${BLANK}]*
       (?: \\n (?! [${BLANK}]* \\k<glued> [${BLANK}]* (?![^\\n]) ) [^\\n]* ){0,60}
       \\n [${BLANK}]* \\k<glued> [${BLANK}]* (?![^\\n])
     | (?: (?<=[:：]\\n\\n) | (?<=[:：]\\r\\n\\r\\n) )
       (?: \\x20{4}|\\t) (?! [${BLANK}]* (?:[\\-*+•‣▪]|\\p{Nd}{1,3}[.\\)]) [${S}] ) [^\\n]*[^${S}][^\\n]*
       (?: \\n (?: [${BLANK}]* \\n )* (?:\\x20{4}|\\t) [^\\n]* )*`,
    "g",
  );
  const UNITS = pattern(
    `\\$\\$ [^$]{1,2000} \\$\\$
     | \\\\\\[ (?: (?!\\\\[\\[\\]]) [^] ){1,2000} \\\\\\]
     | \\\\\\( (?: (?!\\\\[\\(\\)]) [^] ){1,1000} \\\\\\)
     | \\\\begin\\{ (?<env> (?:equation|align|aligned|gather|gathered|multline|eqnarray|split|cases
         |array|tabular|[bpvBV]?matrix) \\*? ) \\}
       (?: (?!\\\\(?:begin|end)\\{\\k<env>\\}) [^] ){1,2000} \\\\end\\{\\k<env>\\}
     | \\$ (?=[^${S}$]) [^$\\n]{1,500} (?<=[^${S}]) \\$ (?!\\p{Nd})
     | \`\` [^\\n]{1,500}? \`\`
     | \` [^\`\\n]{1,500} \`
     | !? \\[ [^\\[\\]\\n]{0,300} \\]
       (?: \\( [^${S}\\(\\)]{0,500} (?: \\( [^${S}\\(\\)]{0,200} \\) [^${S}\\(\\)]{0,200} )?
             (?: \\x20"[^"\\n]{0,200}" )? \\)
         | \\[ [^\\[\\]\\n]{1,40} \\] )
     | <\\x21-- (?: (?!-->) [^] ){0,2000} -->
     | ។ល។
     | (?<!\\p{Nd}) (?: \\p{Nd}{1,2}\\.\\x20?\\p{Nd}{1,2}\\.\\x20?\\p{Nd}{4}
         | \\p{Nd}{4}\\.\\x20?\\p{Nd}{1,2}\\.\\x20?\\p{Nd}{1,2} ) (?!\\p{Nd})`,
    "g",
  );
  const LABEL = pattern(
    `(?<![^\\n]) [^\\p{L}\\p{N}_\\n]*
     (?<label> (?: (?<word> [^${S}\\p{Nd}.!?,:;]{1,15} ) [${S}]? \\p{Nd}{1,3} | \\p{Nd}{1,3} \\.? [${LETTER}]{1,2} )
     \\\\? \\. [*_]* [${BLANK}]+ ) (?=[^${S}])`,
    "g",
  );
  const LINK_END = /["'”’*_]*\](?=[(\[])/uy;
  const NUMERAL = `(?:\\p{Nd}{1,4}(?:\\.\\p{Nd}{1,3}){0,3}
    |[\\u1369-\\u137c]+|[A-Za-zА-Яа-яא-תأ-يก-ฮ가나다라마바사아자차카타파하]|[ivxIVX]{1,6})`;
  const STEP = "(?:Step|STEP|Schritt|Paso|Étape|Passo|Шаг)";
  const ITEM = pattern(
    `^ [${S}]* (?: >[${S}]* )*
     (?: [\\-*+•‣▪●◦·–—] [${S}]
       | \\*{0,2} \\(? ${NUMERAL} \\\\?[.\\)] \\*{0,2} (?:[${S}]|$)
       | \\p{Nd}{1,4} [.\\)．）、।။۔]
       | [（\\(] (?:\\p{Nd}{1,4}|[一二三四五六七八九十]+) [）\\)]
       | [一二三四五六七八九十]+ [、．]
       | [\\u2460-\\u2473]
       | [0-9#*]\\ufe0f?\\u20e3
       | [\\u2190-\\u21ff\\u2300-\\u23ff\\u25a0-\\u27bf\\u2900-\\u297f\\u2b00-\\u2bff\\u{1f000}-\\u{1faff}]
       | ${STEP}[${S}]\\p{Nd}{1,3}[${S}]?[.:\\)] )`,
  );
  const BOLD_LINE = /^(?:\*\*[^*\n]+\*\*:?|__[^_\n]+__:?)$/u,
    UNDERLINE = /^(?:={2,}|-{2,})$/,
    DASH = pattern(`[${S}]*(?:[–—―]|--?[${S}])`, "y"),
    LETTER_FOLLOWS = pattern(`[${S}]?[${LETTER}]\\.`, "y");
  const BARE_NUMBER = pattern(`^[^\\p{L}\\p{N}$€£¥₹₽₩=≈]*(?:${STEP}[${S}])?${NUMERAL}\\\\?[.\\)．।။۔]\\**$`),
    ROMAN = /^[IVXLC]{2,7}$/,
    THAI_CONSONANTS = /^[ก-ฮ]{2,5}$/,
    SPACED_ABBREVIATION = pattern(
      `(?<![\\p{L}\\p{N}_]) (?: т\\.[${S}]?[дп] | [ap]\\.[${S}]m | [ad]\\.[${S}]C | p\\.[${S}]ex | m\\.[${S}]in
         | bl\\.[${S}]a ) $`,
    ),
    YEAR = pattern(`(?:\\p{Nd}|[IVX])[${S}]*[гв]*$`),
    NUMBER_AFTER_COLON = pattern(`[:：][${S}]+\\p{Nd}{1,3}\\.$`),
    HEADING = pattern(`^[${BLANK}]{0,3}#{1,6}[${S}]`),
    TABLE_ROW = pattern(`^[${S}]*\\|[^\\n]*\\|$`),
    TABLE_RULE = pattern(`^[${S}]*\\|?[${S}]*:?-+:?[${S}]*(?:\\|[${S}]*:?-+:?[${S}]*)+\\|?[${S}]*$`),
    WORD_BEFORE = pattern(`[^${S}\\(\\[\\{"“'‘«„/–—]{1,24}(?=\\n?$)`),
    FIRST_WORD = pattern(
      `[${escaped(OPENERS)}~≈$€£${S}]*([${LETTER}]+(?:['’][${LETTER}]+)?|\\p{Nd})?`,
      "y",
    ),
    ACRONYM = pattern(`^(?:(?:[${LETTER}]\\.-?)+[${LETTER}]|(?:[A-Z]{1,2}[a-z]?\\.)+[A-Z][A-Za-z]?)$`);
  const SHORT_LINE = 40, // characters; shorter lines are not wrapped ones
    FULL_LINE = 60,
    LONGEST_LINE = 120, // of a text with wrapped lines
    NEAR = 200; // characters before a letter that say what it means

  const wordsIn = (text) => new Set(text.trim().split(/\s+/));
  const BEFORE_NAME = wordsIn(`
    mr mrs ms dr prof rev hon sen rep gov pres gen col maj capt cmdr lt sgt messrs
    mme mlle sr.a sra srta dra ing lic hr fr frau dott sig e.g i.e eg ie cf viz vs v resp z.b d.h
    u.a bzw ca approx p.ej p.ex bijv bl d.w.z o.a dhr mevr t.ex bl.a d.v.s f.eks np tj tzn tzw m.in
    ul św např tzv esim jl tp örn κ т.е напр см ср им ул пл пр акад проф д-р г-н г-жа
    fa frl ud uds ee p.s n.b profª drª ths ts pgs pgs.ts gs.ts вул ดร นพ พญ ผศ รศ
    ผศ.ดร รศ.ดร ศ.ดร
    डॉ डा प्रो पं श्री सं कु मो पू वि.सं ড ডা ডাঃ মো মোঃ ડૉ શ્રી திரு திருமதி டாக்டர் డా శ్రీ ಡಾ ಶ್ರೀ ഡോ ശ്രീ
    बी सी डी एफ जी एच आई जे के एल एम एन पी क्यू आर एस टी यू वी डब्ल्यू एक्स वाई
    பி சி டி எஃப் ஜி எச் ஜே கே எல் எம் என் ஆர் எஸ் யு வி டபிள்யூ ஒய்
    బి సి డి ఎఫ్ జి హెచ్ జె కె ఎల్ ఎం ఎన్ పి ఆర్ ఎస్ టి యు వి వై`);
  const BEFORE_NUMBER = wordsIn(`
    no nos nr num núm fig figs eq eqs sec secs ch chap vol vols art ex pp p par para tab tbl app
    op lines ver v abb abs kap bd s min max pop tel rs est kl str रु стр рис гл табл п пп ст вып буд
    кв корп नं क्र`);
  const MAY_END = wordsIn(`
    al etc chr inc ltd co corp bros jr sr esq a.m p.m am pm ph.d m.d b.a m.a u.s u.k u.n e.u d.c
    dept univ assn ave blvd rd jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu
    fri sat sun usw etc itd itp enz osv atd ecc dll dsb dst st mt ft av ff bzgl uu т.д т.п др пр г
    гг в вв руб коп тыс млн млрд чел кг км мм мл гр шт tsp tbsp oz lb lbs yd yds gal mi tys mio mrd
    мин сек`);
  const BEFORE_CAPITAL = wordsIn("etc usw itd itp enz osv atd ecc dll dsb dst tsp tbsp oz lb lbs yd yds gal mi tys");
  const MONTHS = wordsIn(`
    januar februar märz april mai juni juli august september oktober november dezember
    jahrhundert weltkrieg auflage`);
  const BEFORE_ORDINAL = wordsIn("der die das den dem des im zum zur vom beim");
  const AFTER_TIME = wordsIn(`
    monday tuesday wednesday thursday friday saturday sunday est edt pst pdt cst gmt utc et pt ct`);
  const BEFORE_LETTER = wordsIn(`
    answer option choice vitamin plan type class grade group hepatitis point letter case variable
    → -> --> ⇒ =>`);
  const CHOICES = wordsIn("answer option choice correct");
  const VARIABLES = new Set("xyznkijtwqr");
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
  FG.SENTENCE_WORDS = {
    BEFORE_NAME,
    BEFORE_NUMBER,
    MAY_END,
    BEFORE_CAPITAL,
    MONTHS,
    BEFORE_ORDINAL,
    AFTER_TIME,
    BEFORE_LETTER,
    CHOICES,
    VARIABLES,
    STARTERS,
  };

  const charAt = (text, at) => (at < text.length ? String.fromCodePoint(text.codePointAt(at)) : "");
  function charBefore(text, at) {
    const isSecondHalf = at > 1 && /[\udc00-\udfff]/.test(text[at - 1]);
    return at > 0 ? charAt(text, isSecondHalf ? at - 2 : at - 1) : "";
  }
  const isLower = (c) => /^\p{Lowercase}$/u.test(c) && !/[\u10d0-\u10ff]/.test(c); // Georgian has one case
  const isDigit = (text) => /^\p{Nd}+$/u.test(text);
  const hasWord = (text) => /[\p{L}\p{N}]/u.test(text.replace(TAG, ""));
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
    const fences = [...text.matchAll(FENCE)].map((match) => {
        const start = match.index + (match.groups.glued ? match[0].indexOf("`") : 0);
        return trimmed(text, start, match.index + match[0].length);
      }),
      spans = [];
    let begin = 0;
    for (const [start, end] of [...fences, [text.length, text.length]]) {
      spans.push(...spansOf(UNITS, text, begin, start));
      if (start < end) spans.push([start, end]);
      begin = end;
    }
    const labels = [...text.matchAll(LABEL)],
      alike = new Map(),
      apart = [];
    for (const { groups } of labels) alike.set(groups.word, (alike.get(groups.word) || 0) + 1);
    for (const { index, 0: match, groups } of labels) {
      const end = index + match.length;
      if (alike.get(groups.word) > 1 && endAround(spans, end) === null) apart.push([end - groups.label.length, end]);
    }
    return [...spans, ...apart].sort((a, b) => a[0] - b[0]);
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
      texts = lines.map(([start, end]) => text.slice(start, end)),
      rows = tableRows(texts),
      isUnit = lines.map(([start, end]) => {
        const unit = unitAt(units, start);
        return Boolean(unit) && unit[0] === start && unit[1] === end;
      }),
      width = Math.max(0, ...texts.map((line, n) => (isUnit[n] || rows.has(n) ? 0 : FG.points(line).length))),
      blocks = [];
    let continues = false; // whether the last block may continue
    lines.forEach(([start, end], n) => {
      const line = texts[n],
        last = blocks[blocks.length - 1],
        lastText = last ? text.slice(last[0], last[1]) : "";
      if (!line) {
        continues = continues && BARE_NUMBER.test(lastText);
        return;
      }
      if (n && underlines(texts[n - 1], line) && last[1] === lines[n - 1][1]) {
        blocks[blocks.length - 1] = [last[0], end, true];
        continues = false;
        return;
      }
      const isHeading = HEADING.test(line) || BOLD_LINE.test(line),
        isWhole = isUnit[n] || rows.has(n) || HEADING.test(line),
        begins = isWhole || isHeading || ITEM.test(line),
        isIndented = /^[ \t]*$/.test(text.slice(Math.max(start - 2, 0), start));
      if (continues && !begins && isWrapped(lastText, line, width, isIndented)) blocks[blocks.length - 1] = [last[0], end, false];
      else blocks.push([start, end, isWhole]);
      continues = !isWhole && !isHeading;
    });
    return blocks;
  }

  // Whether a line of `=` or `-` makes a heading of the line before it.
  function underlines(title, line) {
    if (!title || !UNDERLINE.test(line)) return false;
    const isItem = ITEM.test(title) || title.startsWith(">");
    return line[0] === "=" || !(isItem || hasEnded(title));
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

  // The last character before the closing marks of a line; "" if there is none.
  function lastOf(line) {
    let end = line.length;
    while (end > 0 && CLOSERS.includes(line[end - 1])) end--;
    return charBefore(line, end);
  }

  function hasEnded(line) {
    const last = lastOf(line);
    return !last || ":：".includes(last) || ALL_TERMINAL.test(last);
  }

  function isWrapped(block, following, width, isIndented) {
    const isItem = isIndented && ITEM.test(block);
    if (BARE_NUMBER.test(block) || COMMAS.includes(block.slice(-1))) return true;
    const line = block.slice(block.lastIndexOf("\n") + 1),
      size = FG.points(line).length;
    if (hasEnded(line) || (size < SHORT_LINE && !isItem) || isUnspaced(lastOf(line))) return false;
    if (isLower(charAt(following, 0))) return true;
    const word = pattern(`[^${S}]+`).exec(following)[0];
    return FULL_LINE <= size && width <= LONGEST_LINE && size + FG.points(word).length >= width;
  }

  // ---- sentences ---------------------------------------------------------------------------------------------
  function sentencesOfBlock(text, begin, end, units) {
    let start = begin;
    const head = text.slice(0, end),
      spans = [];
    let at = start;
    for (let match; (match = matchAt(TERMINALS, head, at)); ) {
      const marks = { start: match.index, end: match.index + match[0].length, text: match[0] };
      at = marks.end;
      const inside = endAround(units, marks.start + 1);
      if (inside !== null && !matchAt(LINK_END, head, at)) {
        at = Math.max(at, inside);
        continue;
      }
      if (inside !== null) at = inside; // of a link whose text ends with the sentence
      const closing = matchAt(CLOSING, head, at);
      if (closing && !opens(head, at, at + closing[0].length, begin, start)) at += closing[0].length;
      if (endsSentence(head, start, marks, at)) {
        at += matchAt(EMOJI, head, at)?.[0].length ?? 0;
        spans.push(trimmed(text, start, at));
        start = at;
        while (start < end && isSpace(text[start])) start++;
      }
    }
    if (start < end) spans.push([start, end]);
    return spans;
  }

  // Whether the marks [at, after) that could close a quote or emphasis open one instead.
  function opens(text, at, after, begin, start) {
    const following = charAt(text, after);
    if (!hasWord(following) || "<[【".includes(text[at])) return false;
    if (isUnspaced(following)) return text[at] === '"' && (text.slice(begin, at).split('"').length - 1) % 2 === 0;
    return !text.slice(start, at).includes(text[at]);
  }

  function endsSentence(text, start, marks, at) {
    if (at === text.length) return true;
    if (at > marks.end && "」』）】”\"".includes(text[at - 1]) && matchAt(PARTICLE, text, at)) return false;
    const following = charAt(text, at),
      before = marks.start > start ? charBefore(text, marks.start) : " ",
      mark = marks.text.slice(-1);
    if ([...marks.text].some((one) => ALWAYS.includes(one))) return fullMarkEnds(text, start, marks, at);
    if (!isSpaced(text, marks, at) && !needsNoSpace(mark, before, following)) return false;
    const first = matchAt(FIRST_WORD, text, at)?.[1] || "",
      isSmall = isLower(charAt(first, 0));
    if (isSmall && (at > marks.end || matchAt(DASH, text, at))) return false; // "Why?" she asked
    if (";\u037e".includes(mark)) return before >= "\u0370" && before <= "\u03ff"; // asks in Greek
    if (marks.text.includes("…") || marks.text.endsWith("..")) return !isSmall && !isUnspaced(following);
    return marks.text !== "." || stopEnds(text, start, marks.start, first);
  }

  // Whether white space follows the marks and their closers, or the tag of an HTML block.
  function isSpaced(text, marks, at) {
    for (let i = marks.end; i <= at; i++) if (matchAt(BLOCK_TAG, text, i)) return true;
    const emoji = matchAt(EMOJI, text, at);
    return isSpace(charAt(text, at + (emoji ? emoji[0].length : 0)));
  }

  // Whether `mark` can end a sentence between these characters, without a space after it.
  function needsNoSpace(mark, before, following) {
    if ("!?".includes(mark)) return isUnspaced(before) || isUnspaced(following);
    if (!isUnspaced(before) || SPACED_CLAUSES.test(before)) return false;
    return !".…".includes(mark) || isUnspaced(following);
  }

  function fullMarkEnds(text, start, marks, at) {
    const following = charAt(text, at);
    if (COMMAS.includes(following)) return false;
    if (marks.text === "．" && isDigit(charBefore(text, marks.start)) && isDigit(following)) return false;
    return !["．", "।", "။", "۔"].includes(marks.text) || !BARE_NUMBER.test(text.slice(start, marks.end));
  }

  // Whether a single `.` at `stop` ends the sentence that begins at `start`, before the word or digit `first`.
  function stopEnds(text, start, stop, first) {
    const sentence = text.slice(start, stop + 1);
    if (BARE_NUMBER.test(sentence) || NUMBER_AFTER_COLON.test(sentence.slice(-40))) return false;
    const word = WORD_BEFORE.exec(text.slice(Math.max(start, stop - 50), stop))?.[0] || "",
      lowered = word.toLowerCase(),
      initial = charAt(first, 0),
      isStart = isStarter(first);
    if (isDigit(lowered) || ROMAN.test(word)) return !isOrdinal(word, first, sentence);
    if (FG.points(word).length === 1 && endsAWord(text, stop - word.length)) return true;
    if (SPACED_ABBREVIATION.test(text.slice(Math.max(start, stop - 5), stop))) return !isLower(initial);
    if (["г", "в"].includes(lowered) && !YEAR.test(text.slice(Math.max(start, stop - 12), stop))) return false;
    const isBeforeNumber = BEFORE_NUMBER.has(lowered) || lowered.endsWith("str");
    if (isBeforeNumber && (isDigit(first) || word === "pp" || word === "p")) return false;
    if (BEFORE_NAME.has(lowered) && !(lowered === "v" && isDigit(first))) return false;
    if (isLetter(word)) return letterEnds(text, start, stop, word, first);
    if (MAY_END.has(lowered)) {
      if (isLower(initial) || isDigit(first) || !first) return false;
      if (["a.m", "p.m", "am", "pm"].includes(lowered)) return !AFTER_TIME.has(first.toLowerCase());
      return isStart || BEFORE_CAPITAL.has(lowered) || !/^[\x00-\x7f]*$/.test(word);
    }
    if (ACRONYM.test(word)) return isStart;
    return !THAI_CONSONANTS.test(word);
  }

  // Whether a word often begins sentences, and is written as their beginning.
  function isStarter(first) {
    const lowered = first.toLowerCase().replace("’", "'");
    return (STARTERS.has(lowered) || STARTERS.has(lowered.split("'")[0])) && !isLower(charAt(first, 0));
  }

  function isOrdinal(number, first, sentence) {
    if (isDigit(number) && FG.points(number).length > 2) return false;
    const letter = /\p{L}/u.exec(sentence)?.[0] || "",
      isCapital = /^\p{Uppercase}$/u.test(letter);
    const last = sentence.slice(-30).toLowerCase().split(pattern(`[${S}]+`)).slice(-2)[0],
      names = BEFORE_ORDINAL.has(last) && first !== "" && !isStarter(first) && !isDigit(first);
    return MONTHS.has(first.toLowerCase()) || (isCapital && isLower(charAt(first, 0))) || names;
  }

  // Whether the letter at `at` ends a longer word or a path: `Bob's`, `a.b/c`.
  function endsAWord(text, at) {
    const before = charBefore(text, at);
    if (before === "/") return true;
    const isUpper = /^\p{Uppercase}$/u.test(charAt(text, at));
    return ["'", "’", '"'].includes(before) && /^\p{L}$/u.test(charBefore(text, at - 1)) && !isUpper;
  }

  // Whether a word is one letter, which a stop can abbreviate. A Korean syllable is a word.
  function isLetter(word) {
    if (!/^\p{L}$/u.test(word) || (word >= "\uac00" && word <= "\ud7a3")) return false;
    return !isUnspaced(word) || SPACED_CLAUSES.test(word);
  }

  // The place that lies so many code points before another one.
  function charsBack(text, at, count) {
    for (; count > 0 && at > 0; count--) at -= charBefore(text, at).length;
    return at;
  }

  function letterEnds(text, start, stop, letter, first) {
    if (matchAt(LETTER_FOLLOWS, text, stop + 1) || first === "Chr") return false;
    if (isStarter(first)) return true;
    const before = text
        .slice(Math.max(start, charsBack(text, stop, NEAR)), stop - letter.length)
        .toLowerCase()
        .split(pattern(`[${S}]+`))
        .filter(Boolean),
      last = before.pop() || "",
      isChoice = ["is", "be", "are"].includes(last) && before.some((word) => CHOICES.has(word)),
      isName = BEFORE_LETTER.has(last.replace(/:+$/, "")) || isChoice || (VARIABLES.has(letter) && !last.endsWith("."));
    return isName && /^\p{Uppercase}$/u.test(charAt(first, 0));
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
      const text = points.join("").replace(OTHER_BREAK, "\n"),
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
