"""The pages of the documentation, and what stands in them: blocks of code, headings, links.

Owns how Markdown is read here; leaves running, linking and generating to those who import this.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "client" / "guides"
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for pages in ("*.md", "proto/**/*.md", "server/**/*.md", "client/**/*.md", "deploy/**/*.md")
    for page in ROOT.glob(pages)
)
"""Every page, from the repository's root."""

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\s*$")
_NOT_RUN = re.compile(r"^\s*<!-- not run: (?P<reason>.+) -->$")
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_CODE_SPAN = re.compile(r"`[^`]*`")


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    language: str
    code: str
    line: int
    """Of its first line of code, from 1."""
    not_run: str | None
    """Why it is only parsed; from a comment `<!-- not run: … -->` in the line before."""


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks_of(page: str) -> list[Block]:
    """Returns the page's blocks in order."""
    lines, blocks, i = text_of(page).splitlines(), [], 0
    while i < len(lines):
        if (fence := _FENCE.match(lines[i])) is None:
            i += 1
            continue
        indent, first = fence["indent"], i + 1
        i = first
        while lines[i] != f"{indent}```":
            i += 1
        note = _NOT_RUN.match(lines[first - 2]) if first > 1 else None
        code = "".join(line.removeprefix(indent) + "\n" for line in lines[first:i])
        blocks.append(Block(fence["language"], code, first + 1, note and note["reason"]))
        i += 1
    return blocks


def _prose_of(page: str) -> Iterator[str]:
    """The lines outside blocks of code."""
    inside = False
    for line in text_of(page).splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            yield line


def links_of(page: str) -> list[str]:
    """Returns what the page links to, as it is written there."""
    return [link["target"] for line in _prose_of(page) for link in _LINK.finditer(_CODE_SPAN.sub("", line))]


def anchors_of(page: str) -> set[str]:
    """Returns the anchors that GitHub gives to the page's headings."""
    headings = [line.lstrip("#").strip() for line in _prose_of(page) if re.match(r"#{1,6} ", line)]
    seen: dict[str, int] = {}
    anchors = set()
    for heading in headings:
        kept = [c for c in heading.lower() if c in " -_" or unicodedata.category(c)[0] in "LN"]
        anchor = "".join(kept).replace(" ", "-")
        number = seen[anchor] = seen.get(anchor, -1) + 1
        anchors.add(f"{anchor}-{number}" if number else anchor)
    return anchors
