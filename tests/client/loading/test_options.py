"""Options that are passed on: the same names and types as where they end, known to mypy, and others refused by name."""

import inspect
from pathlib import Path
from typing import ForwardRef

import pytest
from mypy import api as mypy

from packhorse.client import PackedDataLoader, PackedDataset, create_packed_dataloader
from packhorse.client.loading.options import DatasetOptions, LoaderOptions
from packhorse.client.trainers import PackedDataModule

REPOSITORY = Path(__file__).parents[3]
CORPUS = ("embedded:nowhere", "corpus", [[1, 2]])


@pytest.mark.parametrize(("owner", "options"), [(PackedDataset, DatasetOptions), (PackedDataLoader, LoaderOptions)])
def test_options_are_those_of_the_signature(owner, options):
    """An option added to one of them is added to the other: the order tells a reader where."""
    signature = [p for p in inspect.signature(owner).parameters.values() if p.kind is p.KEYWORD_ONLY]
    passed_on = {
        name: kind.__forward_arg__ if isinstance(kind, ForwardRef) else kind
        for name, kind in options.__annotations__.items()
    }
    assert passed_on == {p.name: p.annotation for p in signature if p.name != "batch_size"}


@pytest.mark.parametrize("make", [create_packed_dataloader, PackedDataModule])
def test_an_unknown_option_is_refused_with_those_spelled_alike(make):
    with pytest.raises(TypeError, match=rf"{make.__name__} has no option 'shift_label'; did you mean shift_labels\?"):
        make(*CORPUS, batch_size=1, shift_label=True)
    with pytest.raises(TypeError, match=r"no option 'zzz'; there are: access, accumulation, balance, .*world_size"):
        make(*CORPUS, batch_size=1, zzz=1)


SNIPPET = """
from packhorse.client import create_packed_dataloader
from packhorse.client.trainers import PackedDataModule
create_packed_dataloader("host:1", "corpus", "corpus.idx", batch_size=1, seed=1, num_workers=0, skip={1: "2:3"})
create_packed_dataloader("host:1", "corpus", "corpus.idx", batch_size=1, shift_label=True)
create_packed_dataloader("host:1", "corpus", "corpus.idx", batch_size=1, seed="one")
PackedDataModule("host:1", "corpus", "corpus.idx", batch_size=1, prefetch_factr=2)
"""


def test_mypy_knows_the_options(tmp_path):
    settings = tmp_path / "mypy.ini"
    settings.write_text(
        "[mypy]\nnamespace_packages = true\nexplicit_package_bases = true\n"
        f"mypy_path = {':'.join(str(REPOSITORY / root) for root in ('proto', 'server', 'client'))}\n"
        "follow_imports = silent\nignore_missing_imports = true\n"
        "[mypy-torch.*,numpy.*,grpc.*,google.*,lightning.*]\nfollow_imports = skip\n"
    )
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET)
    told, _, _ = mypy.run(["--config-file", str(settings), "--cache-dir", str(tmp_path / "cache"), str(snippet)])
    errors = [line.split(":", 2)[1:] for line in told.splitlines() if ": error:" in line]
    assert [int(line) for line, _ in errors] == [5, 6, 7], told
    assert "shift_label" in errors[0][1]
    assert "prefetch_factr" in errors[2][1]
