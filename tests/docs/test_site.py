"""The documentation site: it builds without a warning, and holds every page, for people and for language models.

`make test` builds a site of a few pages by the settings of the real one; `make docs` and `make test-long` that of all.
"""

import html
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pages import PAGES, ROOT

sys.path.append(str(ROOT / "deploy" / "docs"))
from notebooks import markdown_of


class Resources(HTMLParser):
    """What a page has its browser fetch by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video"):
            self.urls.append(attributes.get("src") or "")
        elif tag == "link" and attributes.get("rel") in ("stylesheet", "preload", "icon", "preconnect"):
            self.urls.append(attributes.get("href") or "")


@dataclass(frozen=True)
class Site:
    """What is built of pages."""

    source: Path
    output: Path
    pages: set[str]
    """Those that have to be there, from the source's root."""


def build(source: Path, output: Path, *flags: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", ROOT / "deploy" / "docs", *flags]
    return subprocess.run([*command, source, output], capture_output=True, text=True)


FIRST = "deploy/docs/index.md"

FEW_PAGES = {
    FIRST: "# Site\n\n```{toctree}\n:caption: Pages\n\n/README\n/client/guides/serve\n/client/examples/shown\n```\n",
    "README.md": "# Packhorse\n\nIt packs. It serves: see [how](client/guides/serve.md#how-it-serves).\n",
    "client/guides/serve.md": "# Guide\n\nOf `serve`.\n\n## How it serves\n\n```shell\npackhorse serve\n```\n",
}
CELLS = [
    ("markdown", "# Notebook\n\nIt shows a picture."),
    ("code", 'class Picture:\n    def _repr_html_(self):\n        return \'<svg role="img" aria-label="bins"></svg>\''),
    ("code", "print('largest', 3 - 1)\nPicture()"),
]


def few_pages(source: Path) -> Site:
    """Writes the sources of a site of a few pages: a list of them, a link, and a notebook."""
    cells = [{"cell_type": kind, "source": text} for kind, text in CELLS]
    for page, text in {**FEW_PAGES, "client/examples/shown.ipynb": json.dumps({"cells": cells})}.items():
        (source / page).parent.mkdir(parents=True, exist_ok=True)
        (source / page).write_text(text)
    return Site(source, source / "html", {*FEW_PAGES, "client/examples/shown.md"})


@pytest.fixture(scope="module", params=["few", pytest.param("all", marks=pytest.mark.long)])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A site of a few pages, or the real one."""
    folder = tmp_path_factory.mktemp("site")
    site = few_pages(folder) if request.param == "few" else Site(ROOT, folder / "html", set(PAGES))
    built = build(site.source, site.output, "-d", folder / "trees")
    assert built.returncode == 0, built.stderr
    return site


def test_the_contents_list_every_design_page() -> None:
    entries = re.findall(r"^\.\./\.\./(\S+)$", (ROOT / FIRST).read_text(), re.MULTILINE)
    listed = {page for entry in entries for page in ROOT.glob(f"{entry}.md")}
    assert listed >= {page for root in ("proto", "server", "client") for page in (ROOT / root).rglob("DESIGN.md")}


def test_every_page_is_there_for_people(site: Site) -> None:
    for page in site.pages:
        assert (site.output / page).with_suffix(".html").is_file(), page
    assert (site.output / "searchindex.js").is_file()


def test_every_page_is_there_as_markdown(site: Site) -> None:
    listed = set(re.findall(r"\]\((\S+\.md)\)", (site.output / "llms.txt").read_text()))
    assert listed >= site.pages - {FIRST}
    whole = (site.output / "llms-full.txt").read_text()
    for page in listed:
        notebook = (site.source / page).with_suffix(".ipynb")
        text = markdown_of(notebook) if notebook.is_file() else (site.source / page).read_text()
        assert (site.output / page).read_text() == text
        assert text in whole


def test_a_notebook_shows_what_its_cells_show(site: Site) -> None:
    if site.source != ROOT:
        page = (site.output / "client/examples/shown.html").read_text()
        assert page.count('<svg role="img" aria-label="bins">') == 1
        assert "largest 2\n" in page
        return
    page = (site.output / "client/examples/first_pack.html").read_text()
    assert page.count('role="img" aria-label="position 0') == 1, "the bins"
    assert page.count('role="img" aria-label="row 0') == 1, "the batch"
    assert "largest difference of a gradient" in page


def test_no_page_asks_another_origin(site: Site) -> None:
    for path in site.output.rglob("*.html"):
        resources = Resources()
        resources.feed(path.read_text())
        assert resources.urls
        assert not [url for url in resources.urls if "//" in url], path


def test_a_diagram_shows_what_its_text_says() -> None:
    for source in (ROOT / "deploy" / "docs").glob("*.dot"):
        drawn = html.unescape(source.with_suffix(".svg").read_text())
        text = re.sub(r"//.*", "", source.read_text())
        for label in re.findall(r'label="([^"]+)"', text):
            assert label in drawn, f"{source.name} has {label!r}: make its .svg again, as its first line says"
        assert len(re.findall(r"<g id=.edge", drawn)) == text.count("->")


def test_a_broken_link_ends_the_build(tmp_path: Path) -> None:
    site = few_pages(tmp_path)
    (tmp_path / "client/guides/serve.md").write_text("# Guide\n\n## How it serves\n\n[gone](gone.md)\n")
    built = build(tmp_path, site.output)
    assert built.returncode != 0
    assert "gone.md" in built.stderr
