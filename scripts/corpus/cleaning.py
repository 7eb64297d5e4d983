"""Files of packages to plain text: HTML, reStructuredText, man pages, dictionaries, fortunes."""

from __future__ import annotations

import gzip
import html.parser
import re
import zlib
from collections.abc import Callable
from itertools import islice

_LEAST_LETTERS = 0.6  # of what is no white space; less is a table, a dump or a program
_MOST_BROKEN = 1e-4  # of the characters; a large dictionary has a few that are not in its encoding
_NAMES_LEFT_OUT = re.compile(r"^(copyright|changelog|genindex|py-modindex|search)\b", re.IGNORECASE)
_HTML = re.compile(r"\.x?html?(\.[a-z]{2}(-[a-z]{2})?)?(\.utf8)?$", re.IGNORECASE)
_MAN_PAGE = re.compile(r"/man\d\w*/[^/]+\.\d\w*$")
_FORTUNES = re.compile(r"/games/fortunes/(?!.*\boff/).*(?<!\.dat)$")  # "off" is offensive, and in ROT13


def text_of(path: str, content: bytes) -> str | None:
    """The text of a file, paragraphs separated by empty lines; None if it is none, or mostly something else.

    Args:
        path: in the package; it tells the kind of file.
    """
    try:
        name = path.rpartition("/")[2]
        clean = None if _NAMES_LEFT_OUT.match(name) else _cleaner(path.removesuffix(".gz"))
        if clean is None:
            return None
        if path.endswith((".gz", ".dz")):
            content = gzip.decompress(content)
        text = content.decode(_charset(content) if clean is from_html else "utf-8", "replace")
    except (LookupError, OSError, EOFError, zlib.error):  # an unknown charset, a damaged file
        return None
    if text.count("\ufffd") > _MOST_BROKEN * len(text):  # in some other encoding
        return None
    text = clean(text.replace("\ufffd", ""))
    return text if is_prose(text := tidy(text)) else None


def _cleaner(path: str) -> Callable[[str], str] | None:
    name = path.rpartition("/")[2].lower()
    if _MAN_PAGE.search(path):
        return from_roff
    if _FORTUNES.search(path):
        return from_fortunes
    if name.endswith(".dict.dz"):
        return from_dictionary
    if _HTML.search(name):
        return from_html
    if name.endswith((".rst", ".rst.txt")):
        return from_rst
    return str if name.endswith((".txt", ".text")) else None


def _charset(content: bytes) -> str:
    found = re.search(rb"charset=[\"']?([\w.:-]+)|encoding=[\"']([\w.:-]+)", content[:2048], re.IGNORECASE)
    return (found[1] or found[2]).decode("ascii") if found else "utf-8"


def tidy(text: str) -> str:
    """Without overstrikes, control characters and white space at the ends of lines."""
    text = re.sub(r".\x08", "", text.replace("\r\n", "\n").replace("\f", "\n\n"))
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f\ufeff\u00ad]", "", text).replace("\u00a0", " ")
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def is_prose(text: str) -> bool:
    """Whether letters are most of a text; its first 100,000 characters tell."""
    seen = [character for character in islice(text, 100_000) if not character.isspace()]
    # Vowel signs of Indian scripts are no letters to Python; no table is written with them.
    letters = sum(character.isalpha() or ord(character) > 0x2FF for character in seen)
    return bool(seen) and letters >= _LEAST_LETTERS * len(seen)


# ---- HTML ----

_BLOCKS = re.compile(
    r"address|article|aside|blockquote|body|center|d[dlt]|details|div|fieldset|figcaption|figure|h[1-6r]|li|main|ol"
    r"|p|pre|section|summary|table|title|tr|ul"
)
_SKIPPED = re.compile(r"script|style|nav|header|footer|svg|math|template|select|button|noscript")


class _Text(html.parser.HTMLParser):
    """Collects what a reader of the page would read, navigation left out."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._skipping, self._depth = "", 0  # the element that is left out, and how many of its kind are open
        self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipping:
            self._depth += tag == self._skipping
            return
        given = dict(attrs)
        is_link = "headerlink" in (given.get("class") or "")
        if _SKIPPED.fullmatch(tag) or given.get("role") == "navigation" or is_link:
            self._skipping, self._depth = tag, 1
        elif _BLOCKS.fullmatch(tag):
            self.parts.append("\n\n")
            self._verbatim += tag == "pre"
        elif tag in ("br", "td", "th"):
            self.parts.append("\n" if tag == "br" else " ")

    def handle_endtag(self, tag: str) -> None:
        if self._skipping:
            self._depth -= tag == self._skipping
            self._skipping = self._skipping if self._depth else ""
        elif _BLOCKS.fullmatch(tag):
            self.parts.append("\n\n")
            self._verbatim = max(0, self._verbatim - (tag == "pre"))

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self.parts.append(data if self._verbatim else re.sub(r"\s+", " ", data))


def from_html(text: str) -> str:
    """The text of a page."""
    page = _Text()
    page.feed(text)
    page.close()
    return re.sub(r"(?<=\n) (?=\S)", "", "".join(page.parts))


# ---- other markup ----


def from_rst(text: str) -> str:
    """Without directives, targets, underlines and the marks of roles; what a directive contains stays."""
    text = re.sub(r"^[ \t]*\.\. .*\n(?:[ \t]+:[\w-]+:.*\n)*", "", text, flags=re.MULTILINE)
    text = re.sub(r"^([^\w\s])\1{2,}[ \t]*$", "", text, flags=re.MULTILINE)
    text = re.sub(r":[\w:+-]+:`~?!?([^`<]*?)\s*(?:<[^`>]*>)?`", r"\1", text)
    text = re.sub(r"`([^`<]+?)\s*<[^`>]*>`_+", r"\1", text)
    text = re.sub(r"``([^`]+)``|`([^`]+)`_*", r"\1\2", text)
    text = re.sub(r"(?<!\w)(\*\*?)(\w[^*\n]*)\1", r"\2", text)
    return re.sub(r"::[ \t]*$", ":", text, flags=re.MULTILINE)


_ROFF_LETTERS = {
    "aq": "'", "dq": '"', "lq": "“", "rq": "”", "oq": "‘", "cq": "’", "em": "—", "en": "–", "hy": "-",
    "co": "©", "bu": "•", "ha": "^", "ti": "~", "rs": "\\", "ga": "`", "mu": "×", "ss": "ß", "->": "→",
    "<=": "≤", ">=": "≥", "Fo": "«", "Fc": "»", "L\"": "“", "R\"": "”", "+-": "±", "at": "@", "sh": "#",
}  # fmt: skip
_ROFF_ESCAPE = re.compile(
    r"\\(?:\[(?P<long>[^]]*)\]|\((?P<two>..)|\*(?:\((?P<string>..)|\[(?P<name>[^]]*)\]|.)"
    r"|f(?:\[[^]]*\]|\(..|.)|[mM](?:\[[^]]*\]|\(..|.)|[nk](?:\[[^]]*\]|\(..|[+-]?.)|s[+-]?\d+"
    r"|[hvwlLoDNbxzX]'[^']*'|[%&/,:|^cdupt{}!?)]|(?P<plain>[-e 0~`'.]))"
)
_ROFF_PLAIN = {"e": "\\", "~": " ", "0": " "}
_PARAGRAPH = re.compile(r"S[HShs]|[LP]?P|[THI]P|TQ|sp|nf|fi|E[XE]|Pp|It|[BE][ld]|R[SE]|[YS][SY]")
_HEADING = re.compile(r"S[HShs]")
_MDOC = re.compile(  # macros that others call within their line
    r"A[dnpr]|C[dm]|D[lqv]|E[mrv]|F[alnt]|I[cn]|Li|N[ms]|O[copx]|P[afq]|Q[lq]|S[qty]|T[an]|V[at]|Xr"
)
_WITH_TEXT = re.compile(rf"S[HShs]|[BIR]{{1,2}}|S[BMY]|IP|OP|UR|MT|It|Nd|{_MDOC.pattern}")
_JOINED = re.compile(r"BR|RB|BI|IB|IR|RI")


def from_roff(text: str) -> str:
    """A man page without its requests; unknown macros are left out with their arguments."""
    text = re.sub(r"^[.']\s*(?:de1?|am|ig|TS)\b.*?^\.(?:\.|TE)", "", text, flags=re.MULTILINE | re.DOTALL)
    lines: list[str] = []
    for line in text.splitlines():
        request = re.match(r"[.']\s*([A-Za-z]{1,3})?\s*(.*)", line)
        if request is None:
            lines.append(line)
            continue
        name, rest = request[1] or "", re.sub(r'\\".*', "", request[2])
        if _PARAGRAPH.fullmatch(name):
            lines.append("")
        if _WITH_TEXT.fullmatch(name):
            words = [quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|(\S(?:\\ |\S)*)', rest)]
            if name[1:].islower():
                words = [word for word in words if not _MDOC.fullmatch(word)]
            lines.append(("" if _JOINED.fullmatch(name) else " ").join(words[:1] if name == "IP" else words))
        if _HEADING.fullmatch(name):
            lines.append("")
    return _ROFF_ESCAPE.sub(_roff_letter, re.sub(r'\\["#].*', "", "\n".join(lines)))


def _roff_letter(match: re.Match[str]) -> str:
    if match["plain"]:
        return _ROFF_PLAIN.get(match["plain"], match["plain"])
    name = match["long"] or match["two"] or match["string"] or match["name"] or ""
    if re.fullmatch(r"u[0-9A-F]{4,5}", name):
        return chr(int(name[1:], 16))
    return _ROFF_LETTERS.get(name, "")


def from_fortunes(text: str) -> str:
    """Each saying a paragraph or more."""
    return re.sub(r"^%.*$", "", text, flags=re.MULTILINE)


def from_dictionary(text: str) -> str:
    """Each entry a paragraph or more, without lines that only name a source: "[1913 Webster]"."""
    text = re.sub(r"^[ \t]*\[[^][\n]{2,40}\]$\n?", "", text, flags=re.MULTILINE)
    return re.sub(r"(\n[ \t].*\n)(?=\S)", r"\1\n", text)
