"""Code that ran with the last release runs with this one, as far as griffe sees it in the sources."""

from pathlib import Path

import pytest

pytest.importorskip("griffe", reason="griffe is not installed: pip install griffelib")

from breaking import at, breaking, extracted, last_tag, loaded
from names import public_packages
from tests.surface.record import read_record

from packhorse.deprecations import DECLARED

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.long
def test_nothing_public_breaks_what_ran_with_the_last_release(tmp_path):
    tag = last_tag(REPOSITORY)
    if tag is None:
        pytest.skip("no release has a tag yet")
    warned = read_record((Path(__file__).parent / f"{tag.removeprefix('v')}.txt").read_text(encoding="utf-8"))
    found = breaking(loaded(extracted(REPOSITORY, tag, tmp_path)), loaded(REPOSITORY), public_packages())
    assert [text for name, text in found if warned.get(name) is None and name not in DECLARED] == []


@pytest.mark.long
def test_griffe_finds_the_public_names_of_this_tree():
    """So that a comparison of nothing does not pass."""
    tree = loaded(REPOSITORY)
    missing = {f"{package}.{name}" for package, names in public_packages().items() for name in names}
    missing = {path for path in missing if at(tree, path) is None}
    assert [path for path in missing if not path.rpartition(".")[2].isupper()] == []  # constants assigned in tuples
    assert list(breaking(tree, tree, public_packages())) == []


BEFORE = """
class Reader:
    def read(self, source, limit=None): ...
    def close(self): ...

def connect(target, *, ca=None): ...
def inner(a): ...
"""
PUBLIC = {"tiny": ("Reader", "connect")}


def tree_of(folder: Path, source: str):
    """A package whose public names come from a private module, as ours do."""
    (folder / "tiny").mkdir(parents=True)
    (folder / "tiny" / "_all.py").write_text(source)
    (folder / "tiny" / "__init__.py").write_text("from tiny._all import *\n\n__all__ = ['Reader', 'connect']\n")
    return loaded(folder, "tiny")


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ("def connect(target, *, ca=None)", "def connect(address, *, ca=None)", "tiny.connect(target)"),
        ("def connect(target, *, ca=None)", "def connect(target)", "tiny.connect(ca)"),
        ("def connect(target, *, ca=None)", "def connect(target, key, *, ca=None)", "tiny.connect(key)"),
        ("def connect(target", "def connect_to(target", "tiny.connect"),
        ("source, limit=None", "limit=None, source=None", "tiny.Reader.read(source)"),
        ("    def close(self): ...\n", "", "tiny.Reader.close"),
    ],
)
def test_what_breaks_is_found(tmp_path, before, after, name):
    assert before in BEFORE
    old, new = tree_of(tmp_path / "old", BEFORE), tree_of(tmp_path / "new", BEFORE.replace(before, after))
    found = list(breaking(old, new, PUBLIC))
    assert name in [each for each, _ in found], found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("*, ca=None", "*, ca='ca.pem', key=None"),
        ("def inner(a)", "def inner(b)"),
        ("    def close", "    def open(self): ...\n    def close"),
    ],
)
def test_what_breaks_nothing_is_left_alone(tmp_path, before, after):
    assert before in BEFORE
    old, new = tree_of(tmp_path / "old", BEFORE), tree_of(tmp_path / "new", BEFORE.replace(before, after))
    assert list(breaking(old, new, PUBLIC)) == []
