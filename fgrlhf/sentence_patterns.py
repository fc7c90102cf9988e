"""The marks, patterns and words by which `fgrlhf.segmentation` finds sentences."""

import re

COMMAS = ",;，；、､،؛՝፣፤၊"
CLAUSE_MARKS = COMMAS + "!?！？؟"
CLOSERS = "\"'”’»›)]}」』）】》〉〕］｝〗*_`~"
OPENERS = "\"'“‘«‹»›„([{「『（【《〈〔［*_`¿¡–—-"
# marks of any script that need no space after them, by Unicode's property Sentence_Terminal
ALWAYS = "。！？．｡।॥۔؟።፧།༎༏༐༑។៕။։‼⁇⁈⁉‽܀܁܂߹᙮᠃᠉᪨᪩᪪᪫᭚᭛᭞᭟᰻᰼᱾᱿꓿꘎꘏꛳꛷꣎꣏꤯꧉꩝꩞꩟꯫﹖﹗"
TERMINALS = re.compile(rf"(?:[.!?…;\u037e{ALWAYS}]|፡፡)+")
CLOSING = re.compile(
    rf"""
    (?: [{re.escape(CLOSERS)}]
      | \s [»›] (?!\w)
      | [“«‹] (?=\s|$)
      | \[ \^? \d{{1,3}} (?:[,–-]\s?\d{{1,3}})* \]    # notes: [1], [2, 3], [^4], ¹ and 【5】
      | [\u00b2\u00b3\u00b9\u2070-\u2079]+ | \^ \d{{1,3}} (?!\w)
      | 【 [^【】\n]{{1,60}} 】
      | </ [A-Za-z][A-Za-z0-9]* > | <br\s?/?>
      | [\u200b\u200e\u200f\u2060\ufeff]            # that nobody sees
    )+
    """,
    re.VERBOSE,
)
TAG = re.compile(r"</?[A-Za-z][^<>\n]{0,200}>")
BLOCK_TAG = re.compile(r"</?(?:br|p|li|ul|ol|div|h[1-6]|tr|td|th|table|blockquote)\b")
# what continues a quoted sentence in Japanese and Chinese: 「...」と言った, （...）は, “...”他说。
PARTICLE = re.compile(
    r"""
    と(?!ころ|にかく|ても) | っ | が(?!ん) | を | の(?!ち) | に(?!ん) | は(?![いじっ])
    | も(?![うしち]) | で(?![もは]) | な[のど] | だ(?!か|が)
    | [^\s，。！？：“”「」『』]{1,6} (?<!知)[说說问問道答喊叫想] [，。！]
    """,
    re.VERBOSE,
)
# faces, hands, hearts and the like stand behind a sentence rather than before one
FACES = (
    "\u2639\u263a\u2665\u2728\u2764\u2b50\U0001f308\U0001f31f\U0001f388-\U0001f38a"
    "\U0001f44b-\U0001f450\U0001f493-\U0001f49f\U0001f4aa\U0001f4af\U0001f525\U0001f5a4"
    "\U0001f600-\U0001f64f\U0001f680\U0001f90c-\U0001f93a\U0001f970-\U0001f97a\U0001f9e1"
)
EMOTICON = r"""
    [:;=]['^-]?[()DPpOo*/\\|]+(?!\w) | [xX]D+(?!\w) | <3+(?!\w) | \(?\^[_-]?\^\)?;*
    | T_T | [ㅋㅎㅠㅜ]+
"""
EMOJI = re.compile(
    rf"(?: [^\S\n]? (?: [{FACES}][\ufe0f\u200d\U0001f3fb-\U0001f3ff]* | {EMOTICON} ) )+",
    re.VERBOSE,
)
SPACED_CLAUSES = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\uaa60-\uaa7f]")
# line breaks of one character, which are read as line feeds; `\r\n` stays as it is
OTHER_BREAK = re.compile(r"\r(?!\n)|[\v\f\x85\u2028\u2029]")

# what has no boundary inside, in the order in which they are searched
FENCE = re.compile(
    r"""
    ^ [^\S\n]* (?: (?: > | [-*+•] | \d{1,3}[.)] ) [^\S\n]* )*   # of a quote or an item
    (?P<fence> ```+ (?=[^`\n]*$) | ~~~+ ) [^\n]*                # the line that begins it
    (?: \n (?! (?:>|[^\S\n])* (?P=fence) [`~]* [^\S\n]* $ ) [^\n]* )*
    (?: \n (?:>|[^\S\n])* (?P=fence) [`~]* [^\S\n]* $ )?        # that ends it, if it is there
    | ^ [^`\n]+ (?P<glued>```+) [\w+\#-]* [^\S\n]*              # behind a text: it has an end
    (?: \n (?! [^\S\n]* (?P=glued) [^\S\n]* $ ) [^\n]* ){0,60}
    \n [^\S\n]* (?P=glued) [^\S\n]* $
    | (?: (?<=[:：]\n\n) | (?<=[:：]\r\n\r\n) )                # indented, but no nested list
    (?P<indented> (?:[ ]{4}|\t) (?! [^\S\n]* (?:[-*+•‣▪]|\d{1,3}[.)]) \s ) [^\n]*\S[^\n]*
    (?: \n (?: [^\S\n]* \n )* (?:[ ]{4}|\t) [^\n]* )* )
    """,
    re.VERBOSE | re.MULTILINE,
)
UNITS = re.compile(
    r"""
    \$\$ [^$]{1,2000} \$\$            # formulas
    | \\\[ (?: (?!\\[\[\]]) . ){1,2000} \\\]
    | \\\( (?: (?!\\[()]) . ){1,1000} \\\)
    | \\begin\{ (?P<env> (?:equation|align|aligned|gather|gathered|multline|eqnarray|split|cases
        |array|tabular|[bpvBV]?matrix) \*? ) \}
      (?: (?!\\(?:begin|end)\{(?P=env)\}) . ){1,2000} \\end\{(?P=env)\}
    | \$ (?=[^\s$]) [^$\n]{1,500} (?<=\S) \$ (?!\d)
    | `` [^\n]{1,500}? ``             # code
    | ` [^`\n]{1,500} `
    | !? \[ [^\[\]\n]{0,300} \]       # links
      (?: \( [^\s()]{0,500} (?: \( [^\s()]{0,200} \) [^\s()]{0,200} )? (?: \ "[^"\n]{0,200}" )? \)
        | \[ [^\[\]\n]{1,40} \] )
    | <!-- (?: (?!-->) . ){0,2000} -->
    | ។ល។                             # Khmer "et cetera"
    | (?<!\d) (?:                      # dates
        \d{1,2}\.[ ]?\d{1,2}\.[ ]?\d{4} | \d{4}\.[ ]?\d{1,2}\.[ ]?\d{1,2}
      ) (?!\d)
    """,
    re.VERBOSE | re.DOTALL,
)
# "Tip 1." and "1a.", which number lines if several begin alike
LABEL = re.compile(
    r"""
    ^ [^\w\n]*
    (?P<label> (?: (?P<word> [^\s\d.!?,:;]{1,15} ) \s? \d{1,3} | \d{1,3} \.? [^\W\d_]{1,2} )
    \\? \. [*_]* [^\S\n]+ ) (?=\S)
    """,
    re.VERBOSE | re.MULTILINE,
)
LINK_END = re.compile(r"[\"'”’*_]*\](?=[(\[])")

# letters that number items: Latin, Cyrillic, Hebrew, Arabic, Thai and Korean
LETTERS = "A-Za-zА-Яа-яא-תأ-يก-ฮ가나다라마바사아자차카타파하"
NUMERAL = rf"(?:\d{{1,4}}(?:\.\d{{1,3}}){{0,3}}|[\u1369-\u137c]+|[{LETTERS}]|[ivxIVX]{{1,6}})"
STEP = "(?:Step|STEP|Schritt|Paso|Étape|Passo|Шаг)"
ITEM = re.compile(
    rf"""
    \s* (?: [>]\s* )*
    (?: [-*+•‣▪●◦·–—] \s
      | \*{{0,2}} \(? {NUMERAL} \\?[.)] \*{{0,2}} (?:\s|$)
      | \d{{1,4}} [.)．）、।။۔]
      | [（(] (?:\d{{1,4}}|[一二三四五六七八九十]+) [）)]
      | [一二三四五六七八九十]+ [、．]
      | [\u2460-\u2473]
      | [0-9#*]\ufe0f?\u20e3                              # signs: keycaps, arrows, emoji
      | [\u2190-\u21ff\u2300-\u23ff\u25a0-\u27bf\u2900-\u297f\u2b00-\u2bff\U0001f000-\U0001faff]
      | {STEP}\s\d{{1,3}}\s?[.:)]
    )
    """,
    re.VERBOSE,
)
BOLD_LINE = re.compile(r"\*\*[^*\n]+\*\*:?|__[^_\n]+__:?")
UNDERLINE = re.compile(r"={2,}|-{2,}")
BARE_NUMBER = re.compile(
    rf"(?:[^\w$€£¥₹₽₩=≈]|_)*(?:{STEP}\s)?{NUMERAL}\\?[.)．।။۔]\**"  # no sum of money
)
ROMAN = re.compile("[IVXLC]{2,7}")
THAI_CONSONANTS = re.compile("[ก-ฮ]{2,5}")  # an abbreviation, as of Bangkok
# Russian "etc."; Spanish a. m., p. m., a. C. and d. C.; French p. ex., Polish m. in., Danish bl. a.
SPACED_ABBREVIATION = re.compile(
    r"(?<!\w)(?:т\.\s?[дп]|[ap]\.\sm|[ad]\.\sC|p\.\sex|m\.\sin|bl\.\sa)$"
)
YEAR = re.compile(r"(?:\d|[IVX])\s*[гв]*$")  # or century, before Russian г. and в.
NUMBER_AFTER_COLON = re.compile(r"[:：]\s+\d{1,3}\.$")
HEADING = re.compile(r"[^\S\n]{0,3}#{1,6}\s")
TABLE_ROW = re.compile(r"\s*\|.*\|")
TABLE_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)+\|?\s*")
WORD_BEFORE = re.compile(r"[^\s(\[{\"“'‘«„/–—]{1,24}$")
FIRST_WORD = re.compile(rf"[{re.escape(OPENERS)}~≈$€£\s]*([^\W\d_]+(?:['’][^\W\d_]+)?|\d)?")
ACRONYM = re.compile(r"(?:[^\W\d_]\.-?)+[^\W\d_]|(?:[A-Z]{1,2}[a-z]?\.)+[A-Z][A-Za-z]?")
DASH = re.compile(r"\s*(?:[–—―]|--?\s)")
LETTER_FOLLOWS = re.compile(r"\s?[^\W\d_]\.")


def _words_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Abbreviations without their last stop, in lower case. Those of a title or a link are followed by
# what belongs to them; those before a number end a sentence unless a number follows; the others end
# a sentence if the next word looks like the beginning of one.
BEFORE_NAME = _words_in(
    """mr mrs ms dr prof rev hon sen rep gov pres gen col maj capt cmdr lt sgt messrs
    mme mlle sr.a sra srta dra ing lic hr fr frau dott sig e.g i.e eg ie cf viz vs v resp z.b d.h
    u.a bzw ca approx p.ej p.ex bijv bl d.w.z o.a dhr mevr t.ex bl.a d.v.s f.eks np tj tzn tzw m.in
    ul św např tzv esim jl tp örn κ т.е напр см ср им ул пл пр акад проф д-р г-н г-жа
    fa frl ud uds ee p.s n.b profª drª ths ts pgs pgs.ts gs.ts вул ดร นพ พญ ผศ รศ
    ผศ.ดร รศ.ดร ศ.ดร
    डॉ डा प्रो पं श्री सं कु मो पू वि.सं ড ডা ডাঃ মো মোঃ ડૉ શ્રી திரு திருமதி டாக்டர் డా శ్రీ ಡಾ ಶ್ರೀ ഡോ ശ്രീ
    बी सी डी एफ जी एच आई जे के एल एम एन पी क्यू आर एस टी यू वी डब्ल्यू एक्स वाई
    பி சி டி எஃப் ஜி எச் ஜே கே எல் எம் என் ஆர் எஸ் யு வி டபிள்யூ ஒய்
    బి సి డి ఎఫ్ జి హెచ్ జె కె ఎల్ ఎం ఎన్ పి ఆర్ ఎస్ టి యు వి వై"""
)
BEFORE_NUMBER = _words_in(
    """no nos nr num núm fig figs eq eqs sec secs ch chap vol vols art ex pp p par para tab tbl app
    op lines ver v abb abs kap bd s min max pop tel rs est kl str रु стр рис гл табл п пп ст вып буд
    кв корп नं क्र"""
)
MAY_END = _words_in(
    """al etc chr inc ltd co corp bros jr sr esq a.m p.m am pm ph.d m.d b.a m.a u.s u.k u.n e.u d.c
    dept univ assn ave blvd rd jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu
    fri sat sun usw etc itd itp enz osv atd ecc dll dsb dst st mt ft av ff bzgl uu т.д т.п др пр г
    гг в вв руб коп тыс млн млрд чел кг км мм мл гр шт tsp tbsp oz lb lbs yd yds gal mi tys mio mrd
    мин сек"""
)
BEFORE_CAPITAL = _words_in(  # of these, those that end a sentence before every capital letter
    "etc usw itd itp enz osv atd ecc dll dsb dst tsp tbsp oz lb lbs yd yds gal mi tys"
)
MONTHS = _words_in(
    """januar februar märz april mai juni juli august september oktober november dezember
    jahrhundert weltkrieg auflage"""
)
BEFORE_ORDINAL = _words_in("der die das den dem des im zum zur vom beim")
AFTER_TIME = _words_in(
    "monday tuesday wednesday thursday friday saturday sunday est edt pst pdt cst gmt utc et pt ct"
)
# words before a letter that is no initial: "plan B. Call me." and "for all x. Let"
BEFORE_LETTER = _words_in(
    """answer option choice vitamin plan type class grade group hepatitis point letter case variable
    → -> --> ⇒ =>"""
)
CHOICES = _words_in("answer option choice correct")
VARIABLES = frozenset("xyznkijtwqr")
STARTERS = _words_in(
    """i you he she it we they the a an this that these those there then here now in on at by to of
    for from with as after before since but and or so yet if when while where who what which why
    how however because although my your his her its our their no not yes all both each some many
    most one two also finally first second next thus therefore instead please let is are was were do
    does did can could will would should i'm it's he's she's that's there's they're we're
    you're don't
    он она оно они это эта этот эти мы вы ты я в на но и а затем потом там тут как что когда если
    el la los las un una ella ellos es le les il elle ils elles un une c'est der die das er sie es
    wir ihr und aber dann"""
)
