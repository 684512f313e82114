"""One Markdown page as HTML: anchors, highlighted code, tables that scroll, links of the site."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

LANGUAGES = {"": "text", "python": "python", "toml": "toml", "bash": "bash", "sh": "bash"}
PROMPT = re.compile(r"^>>> ", re.MULTILINE)


@dataclass(frozen=True)
class Rendered:
    """The page, and its second-level headings as (anchor, text)."""

    body: str
    headings: tuple[tuple[str, str], ...]


def render(text: str, link: Callable[[str], str]) -> Rendered:
    """``link`` turns the address of a link or picture into that of the site."""
    engine = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = engine.parse(text)
    headings = _name_headings(tokens)
    _rewrite(tokens, link)
    engine.add_render_rule("fence", _fence)
    engine.add_render_rule("code_block", _fence)
    body: str = engine.renderer.render(tokens, engine.options, {})
    return Rendered(_tables(body), tuple(headings))


def slug(text: str) -> str:
    """The anchor of a heading, as GitHub makes it.

    >>> slug("What is certified, and why")
    'what-is-certified-and-why'
    """
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


def code(text: str, language: str) -> str:
    """Highlighted; reachable by keyboard, because it may be wider than the page."""
    name = (
        "pycon" if language == "python" and PROMPT.search(text) else LANGUAGES.get(language, "text")
    )
    try:
        lexer = get_lexer_by_name(name)
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    inner = highlight(text, lexer, HtmlFormatter(nowrap=True))
    return f'<pre tabindex="0"><code>{inner}</code></pre>\n'


def _fence(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
    token = tokens[index]
    return code(token.content, token.info.split()[0] if token.info.split() else "")


def _name_headings(tokens: Sequence[Token]) -> list[tuple[str, str]]:
    """Give every heading its anchor; the second one of a name gets a number."""
    seen: dict[str, int] = {}
    found = []
    for token, inline in itertools.pairwise(tokens):
        if token.type != "heading_open":
            continue
        words = "".join(
            c.content for c in inline.children or () if c.type in ("text", "code_inline")
        )
        anchor = slug(words)
        seen[anchor] = seen.get(anchor, -1) + 1
        anchor += f"-{seen[anchor]}" if seen[anchor] else ""
        token.attrSet("id", anchor)
        if token.tag == "h2":
            found.append((anchor, words))
    return found


def _rewrite(tokens: Sequence[Token], link: Callable[[str], str]) -> None:
    for token in tokens:
        for child in token.children or ():
            for name in ("href", "src"):
                address = child.attrGet(name)
                if isinstance(address, str):
                    child.attrSet(name, link(address))


def _tables(body: str) -> str:
    """Wide tables scroll inside a box that the keyboard reaches; empty headings are cells."""
    body = re.sub(r"<th([^>]*)></th>", r"<td\1></td>", body)
    body = body.replace("<th>", '<th scope="col">')
    count = 0

    def box(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        opening = f'<div class="scroll" tabindex="0" role="region" aria-label="Table {count}">'
        return f"{opening}{match.group(0)}</div>"

    return re.sub(r"<table>.*?</table>", box, body, flags=re.DOTALL)
