"""The documentation site: it builds without a warning, and holds every page, for people and for language models."""

import html
import re
import subprocess
import sys
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", ROOT / "deploy" / "docs"]
    built = subprocess.run([*command, "-d", output / "trees", ROOT, output / "html"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return output / "html"


def test_every_page_is_there_for_people(site: Path) -> None:
    for page in PAGES:
        assert (site / page).with_suffix(".html").is_file(), page
    assert (site / "searchindex.js").is_file()


def test_every_page_is_there_as_markdown(site: Path) -> None:
    listed = set(re.findall(r"\]\((\S+\.md)\)", (site / "llms.txt").read_text()))
    assert listed >= set(PAGES) - {"deploy/docs/index.md"}
    whole = (site / "llms-full.txt").read_text()
    for page in listed:
        notebook = (ROOT / page).with_suffix(".ipynb")
        text = markdown_of(notebook) if notebook.is_file() else (ROOT / page).read_text()
        assert (site / page).read_text() == text
        assert text in whole


def test_a_notebook_shows_what_its_cells_show(site: Path) -> None:
    page = (site / "client/examples/first_pack.html").read_text()
    assert page.count('role="img" aria-label="position 0') == 1, "the bins"
    assert page.count('role="img" aria-label="row 0') == 1, "the batch"
    assert "largest difference of a gradient" in page


def test_no_page_asks_another_origin(site: Path) -> None:
    for path in site.rglob("*.html"):
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
    (tmp_path / "index.md").write_text("# Site\n\n[gone](gone.md)\n")
    settings = [
        *("-D", "root_doc=index", "-D", "include_patterns=*.md"),
        *("-c", str(ROOT / "deploy" / "docs")),
    ]
    command = [sys.executable, "-m", "sphinx", "-q", "-W", *settings, tmp_path, tmp_path / "html"]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode != 0
    assert "gone.md" in built.stderr
