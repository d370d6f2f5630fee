"""No public name goes without a release that warns, compared with the record of the last one."""

import re

import pytest
from names import names_of, public_names, public_packages
from pages import PAGES, blocks_of
from tests.surface.record import VERSION, gone_too_early, newest_record, read_record, text_of

from packhorse.deprecations import DECLARED


@pytest.fixture(scope="module")
def names():
    return public_names()


def test_no_public_name_goes_without_a_warning(names):
    path = newest_record()
    gone = gone_too_early(read_record(path.read_text(encoding="utf-8")), names, VERSION)
    assert gone == [], (
        f"{path.name} promises these names; packhorse.deprecations keeps them with a warning for one minor release. "
        "Before that release has its tag, python tests/surface/record.py writes its record again"
    )


def test_what_is_declared_to_go_is_still_there(names):
    assert sorted(DECLARED.keys() - names) == []


def test_every_package_that_a_guide_imports_from_is_recorded():
    code = "\n".join(block.code for page in PAGES for block in blocks_of(page) if block.language == "python")
    imported = set(re.findall(r"^\s*from (packhorse\.[a-z_.]+) import", code, re.MULTILINE))
    assert len(imported) > 15
    assert imported - public_packages().keys() == set()


def test_each_kind_of_name_is_looked_at(names):
    assert names >= {
        "packhorse.client.connect",
        "packhorse.client.connect(target)",
        "packhorse.client.Client.stream_bins",
        "packhorse.client.Client.stream_bins(epoch)",
        "packhorse.client.errors.DigestMismatchError",
        "packhorse.client.streams.DatasetInfo.num_bins",
        "packhorse.topology.Topology.world_size",
        "packhorse.topology.Topology(world_size)",
        "packhorse serve --listen",
        "packhorse export --format jsonl",
        "packhorse plan compare",
        "PACKHORSE_DATA_ROOT",
        "packhorse_active_streams",
        "packhorse_active_streams{method}",
    }


RECORDED = {
    "packhorse.client.connect": None,
    "packhorse.client.connect(target)": None,
    "packhorse serve --listen": None,
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_name_that_goes_at_once_is_found(names, name):
    missing = {each for each in names if each != name and not each.startswith(f"{name}(")}
    assert name in gone_too_early(RECORDED, missing, "9.0.0")


@pytest.mark.parametrize(("version", "gone"), [("0.2.3", ["old", "old(x)", "old.read"]), ("0.3.0", []), ("1.0.0", [])])
def test_a_name_that_warned_goes_with_its_members_in_the_release_that_was_said(version, gone):
    recorded = {"old": "0.3", "old(x)": None, "old.read": None, "older": None}
    assert gone_too_early(recorded, {"older"}, version) == gone
    assert gone_too_early(recorded, set(), version) == sorted([*gone, "older"])


def test_a_record_is_read_as_it_is_written():
    text = text_of({"b", "a b --c"}, {"b": "0.3"})
    assert text == "a b --c\nb  # goes in 0.3\n"
    assert read_record(text) == {"a b --c": None, "b": "0.3"}


def test_what_a_class_inherits_from_another_package_is_not_promised():
    class Ours(dict):
        def added(self, one): ...

    Ours.__module__ = "packhorse.somewhere"
    assert sorted(names_of("Ours", Ours)) == ["Ours", "Ours.added", "Ours.added(one)"]
