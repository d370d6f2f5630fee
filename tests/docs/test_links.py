"""Every link of every page leads somewhere: to a file of the repository, to a heading, or out by https."""

import posixpath
import re

import pytest
from pages import PAGES, ROOT, anchors_of, links_of, text_of

FOLDERS = ("proto", "server", "client", "deploy", "tests")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in links_of(page):
        if link.startswith("https://") or link.startswith("http://127.0.0.1:"):
            continue
        path, _, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        assert (ROOT / target).exists(), f"{page} links to {link}, and there is no {target}"
        if anchor:
            assert anchor in anchors_of(target), f"{page} links to {link}, and {target} has no such heading"


def test_every_guide_can_be_reached_from_the_readme():
    reached, left = set(), ["README.md"]
    while left:
        page = left.pop()
        if page in reached or not page.endswith(".md"):
            continue
        reached.add(page)
        for link in links_of(page):
            path = link.partition("#")[0]
            if path and "://" not in link:
                left.append(posixpath.normpath(posixpath.join(posixpath.dirname(page), path)))
    assert set(PAGES) <= reached


@pytest.mark.parametrize("page", [page for page in PAGES if page.endswith(("ARCHITECTURE.md", "DESIGN.md"))])
def test_what_a_newcomer_reads_stays_short(page):
    assert len(text_of(page).splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES)
def test_modules_that_are_named_are_there(page):
    """A file is named by the end of its path, as `epoch/sources/prepared.py`."""
    for name in sorted(
        set()
        if "/reference-" in page or page == "MAP.md"
        else set(re.findall(r"`([\w/.]+\.(?:py|proto|yml|toml))`", text_of(page)))
    ):
        named = [path for root in FOLDERS for path in (ROOT / root).glob(f"**/{name}")]
        named += ROOT.glob(name)
        assert named, f"{page} names {name}, and there is none"


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("client/guides/")])
def test_pages_that_start_workers_name_the_guard_that_scripts_need(page):
    """People copy the loop into a script, which each worker of a fork server runs once more."""
    text = text_of(page)
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    if any(
        re.search(r"create_packed_dataloader\(|= Packed(SFT)?Trainer\(|PackedDataModule\(", each) for each in blocks
    ):
        assert "__main__" in text or "num_workers=0" in text
