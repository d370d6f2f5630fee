"""The documentation site, made of the Markdown where it is: `make docs` builds it into build/docs.

Owns which pages there are, how they look, and what lies beside them: llms.txt, llms-full.txt and each page's Markdown.
Leaves the order of pages to `index.md`, and running a notebook to `notebooks.py`.
"""

import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from docutils.nodes import document
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.addnodes import toctree
from sphinx.application import Sphinx

sys.path.append(str(Path(__file__).parent))
from notebooks import markdown_of, outputs_of

REPOSITORY = Path(__file__).parents[2]

project = "Packhorse"
version = release = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser"]
root_doc = "deploy/docs/index"
include_patterns = [
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md", "MAP.md", "deploy/README.md"),
    *(
        "deploy/docs/*.md",
        "client/guides/*.md",
        "client/examples/*.md",
        "client/examples/*.ipynb",
        "deploy/guides/*.md",
        "tests/benchmarks/*.md",
    ),
    *("proto/**/DESIGN.md", "server/**/DESIGN.md", "client/**/DESIGN.md"),
]
myst_enable_extensions = ["colon_fence"]  # for the lists of pages in index.md
myst_heading_anchors = 4  # as GitHub makes them, so that a page's links lead to the same headings in both

html_theme = "furo"
html_title = f"Packhorse {version}"
html_copy_source = False  # the Markdown itself is beside each page
html_show_copyright = False
html_theme_options = {}
if repository := os.environ.get("DOCS_REPOSITORY"):  # each page then links to its source there, to edit it
    html_theme_options = {"source_repository": repository, "source_branch": "main", "source_directory": ""}


class NotebookParser(MystParser):
    """Reads a notebook as the Markdown of its cells and of what they show; one that fails ends the build."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: document) -> None:
        """Runs the notebook, and parses its page."""
        path = Path(document["source"])
        super().parse(markdown_of(path, outputs_of(path)), document)


def setup(app: Sphinx) -> None:
    """Has notebooks read, and the files for language models written after the pages."""
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    app.connect("build-finished", write_markdown)


def write_markdown(app: Sphinx, failure: Exception | None) -> None:
    """Writes each page's Markdown beside it, a list of all pages (llms.txt), and all of them in one (llms-full.txt)."""
    if failure is not None or app.builder.name not in ("html", "dirhtml"):
        return
    outline, whole = [f"# {project}\n\n> {first_sentence(app, 'README')}"], []
    for caption, pages in sections(app):
        outline.append(f"\n\n## {caption}\n")
        for page in pages:
            text = text_of(app, page)
            copy = Path(app.outdir, page).with_suffix(".md")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text, encoding="utf-8")
            outline.append(f"\n- [{app.env.titles[page].astext()}]({page}.md): {first_sentence(app, page)}")
            whole.append(f"<!-- {page}.md -->\n\n{text}")
    Path(app.outdir, "llms.txt").write_text("".join(outline) + "\n", encoding="utf-8")
    Path(app.outdir, "llms-full.txt").write_text("\n\n".join(whole), encoding="utf-8")


def text_of(app: Sphinx, page: str) -> str:
    """Returns a page's Markdown: its file, or the cells of its notebook."""
    source = Path(app.env.doc2path(page))
    return markdown_of(source) if source.suffix == ".ipynb" else source.read_text(encoding="utf-8")


def sections(app: Sphinx) -> Iterator[tuple[str, list[str]]]:
    """Yields the captions of the landing page's lists, each with its pages in order."""
    for tree in app.env.get_doctree(root_doc).findall(toctree):
        yield tree["caption"], tree["includefiles"]


def first_sentence(app: Sphinx, page: str) -> str:
    """Returns the first sentence of a page's first paragraph, on one line."""
    paragraphs = [each for each in re.split(r"\n\s*\n", text_of(app, page)) if each[0].isalpha()]
    line = " ".join(paragraphs[0].split()) if paragraphs else ""
    return re.split(r"(?<=[.?])\s", re.sub(r"\[([^]]*)\]\([^)]*\)|[*`]", r"\1", line))[0]
