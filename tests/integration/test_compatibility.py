"""What earlier releases wrote, under this one: folders open and serve the same bins, cursors and states go on.

deploy/guides/compatibility.md makes the promise; tests/golden/keep_release.py keeps what each release wrote.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
from tests.golden.keep_release import SOURCES, bins_of, packed
from tests.servers import Server

from packhorse.client import connect
from packhorse.dataset import PreparedDatasetError, open_prepared, verify_files
from packhorse.jobs import show_progress

GOLDEN = Path(__file__).parents[1] / "golden"
RELEASES = sorted(path.parent for path in GOLDEN.glob("*/expected.json"))


@pytest.fixture(scope="module", params=RELEASES, ids=lambda folder: folder.name)
def kept(request, tmp_path_factory):
    """The address of a server over what a release wrote, and what its bins, cursors and states were."""
    folder = tmp_path_factory.mktemp("release")
    shutil.copytree(request.param / "data", folder / "data")
    server = Server(folder / "data", log=folder / "serve.log")
    yield server.target, folder / "data", json.loads((request.param / "expected.json").read_text())
    server.stop()


def test_the_first_release_is_kept():
    assert RELEASES[0].name == "0.1.0"


@pytest.mark.parametrize("name", SOURCES)
def test_bins_are_the_same(kept, name):
    target, _, expected = kept
    with connect(target) as client:
        assert client.get_dataset(name).digest == expected[name]["digest"]
        assert bins_of(client, name) == expected[name]["bins"]


@pytest.mark.parametrize("what", ["cursor", "state"])
@pytest.mark.parametrize("name", SOURCES)
def test_training_goes_on(kept, name, what):
    target, _, expected = kept
    dataset = packed(target, name, (1, 2))
    dataset.load_state_dict(expected[name][what])
    assert next(iter(dataset))["input_ids"].tolist() == expected[name]["then"]


@pytest.mark.parametrize("name", ["plain", "pieces", "pairs"])
def test_checksums_hold(kept, name):
    _, data, _ = kept
    with show_progress(quiet=True) as progress:
        assert verify_files(open_prepared(data / name), progress) == []


def test_a_newer_folder_is_refused_with_what_to_do(kept, tmp_path):
    _, data, _ = kept
    shutil.copytree(data / "plain", tmp_path / "plain")
    manifest = tmp_path / "plain" / "manifest.json"
    manifest.write_text(re.sub(r'"format_version": ?1\b', '"format_version": 2', manifest.read_text()))
    with pytest.raises(PreparedDatasetError, match="version 2, this release reads 1: a newer release wrote it"):
        open_prepared(tmp_path / "plain")
