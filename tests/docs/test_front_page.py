"""The site's front page: its picture and figures are those of data and measurements, and each path has one page."""

import importlib.util
import json
import re
import sys

import numpy as np
import pytest
from pages import ROOT, links_of, text_of

from packhorse.pictures import _svg

FRONT = "deploy/docs/index.md"
RESULTS = "tests/benchmarks/RESULTS.md"
PATHS = (
    *("Pretraining", "Fine-tuning", "Preference", "Reinforcement learning", "Vision"),
    *("TRL", "Trainer", "Lightning", "Megatron", "torchtitan", "JAX and Grain"),
)


@pytest.fixture(scope="module")
def padding():
    """The script `deploy/docs/padding.py`."""
    spec = importlib.util.spec_from_file_location("padding", ROOT / "deploy" / "docs" / "padding.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["padding"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["padding"]


@pytest.fixture(scope="module")
def measured(padding):
    return json.loads(padding.LENGTHS.read_text(encoding="utf-8"))


def test_the_picture_is_what_its_script_makes(padding, measured):
    batch = padding.batch_of(measured["lengths"])
    assert padding.PICTURE.read_text(encoding="utf-8") == padding.draw(batch), "run deploy/docs/padding.py"
    assert tuple(fill for fill, _ in _svg._FILLS) == padding.FILLS


def test_the_page_says_what_the_picture_shows(padding, measured):
    batch = padding.batch_of(measured["lengths"])
    lengths = np.array(batch.lengths)
    page = text_of(FRONT)
    assert f"{len(lengths)} sequences as padded rows hold {padding.percent(batch.padded_share)}" in page
    assert f"into {len(batch.packed)} rows they hold {padding.percent(batch.packed_share)}" in page
    assert f"{len(lengths)} functions and classes" in page
    positions = len(lengths) * lengths.max(), len(batch.packed) * padding.MAX_SEQ_LEN
    assert batch.padded_share == lengths.sum() / positions[0]
    assert batch.packed_share == lengths.sum() / positions[1]
    assert f"{positions[0] / positions[1]:.1f} ×" in padding.PICTURE.read_text(encoding="utf-8")
    assert all(sum(row) <= padding.MAX_SEQ_LEN for row in batch.packed)


def test_the_batch_is_no_lucky_one(padding, measured):
    """Batches of as many random documents are padded about as much."""
    batch = padding.batch_of(measured["lengths"])
    lengths = np.array([length for length in measured["lengths"] if length <= padding.MAX_SEQ_LEN])
    random = np.random.default_rng(0)
    chosen = [random.choice(lengths, len(batch.lengths), replace=False) for _ in range(500)]
    assert abs(np.median([each.mean() / each.max() for each in chosen]) - batch.padded_share) < 0.05


@pytest.mark.long
def test_lengths_are_those_of_the_standard_library(padding, measured, monkeypatch, tmp_path):
    if sys.version.split()[0] != measured["python"]:
        pytest.skip(f"the lengths are those of Python {measured['python']}")
    monkeypatch.setattr(padding, "LENGTHS", tmp_path / "padding.json")
    padding.measure()
    assert json.loads((tmp_path / "padding.json").read_text()) == measured


@pytest.mark.parametrize("page", ["README.md", FRONT])
def test_figures_are_measured(page):
    """Every figure of the first table stands in the results."""
    table = re.search(r"\| measured .*?\n\n", text_of(page), re.DOTALL)[0]
    figures = re.findall(r"\d[\d.]* (?:k|%)", table)
    assert len(figures) == 5
    results = text_of(RESULTS)
    assert [figure for figure in figures if not re.search(rf"(?<![\d.]){re.escape(figure)}", results)] == []


def test_each_path_leads_to_one_page():
    table = re.search(r"## Which path is yours\n\n(.*?)\n\n", text_of(FRONT), re.DOTALL)[1]
    links = re.findall(r"\[([^]]+)\]\(([^)]+)\)", table)
    for path in PATHS:
        assert len([text for text, _ in links if path in text]) == 1, path
    pages = [page for _, page in links]
    assert len(set(pages)) == len(pages) == 12
    assert not [page for page in pages if "#" in page]


def test_the_readme_lists_guides_where_the_sidebar_does():
    """A guide stands under the same caption in both."""
    folder = ROOT / "deploy" / "docs"
    sidebar = {
        (folder / page).resolve().relative_to(ROOT).as_posix(): caption
        for caption, lines in re.findall(r":caption: (\w+)\n(.*?)\n:::", text_of(FRONT), re.DOTALL)
        for page in re.findall(r"^(?:.*<)?([./][\w./-]+)>?$", lines, re.MULTILINE)
    }
    readme = {
        page.removesuffix(".md"): caption
        for caption, lines in re.findall(
            r"^- \*\*(\w+)\*\*(.*?)(?=^- |^$)", text_of("README.md"), re.DOTALL | re.MULTILINE
        )
        for page in re.findall(r"\]\(([\w./-]+\.md)\)", lines)
    }
    assert len(readme) > 40
    assert {page: (caption, sidebar[page]) for page, caption in readme.items() if sidebar[page] != caption} == {}
    guides = {link for link in links_of("README.md") if "/guides/" in link}
    assert {page for page in sidebar if "/guides/" in page} <= {
        link.partition("#")[0].removesuffix(".md") for link in guides
    }
