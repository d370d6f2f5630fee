"""Options: flat words and objects say one thing once, known to mypy; what has no effect is refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from packhorse.client import BatchFormat, LoaderOptions, PackedBins, PackedDataset, Run, Server, Topology
from packhorse.client.options import with_arguments

REPOSITORY = Path(__file__).parents[3]
CORPUS = ("embedded:nowhere", "corpus", [[1, 2]])


def test_words_go_into_their_objects():
    dataset = PackedDataset(
        Server("embedded:nowhere"),
        Run("corpus", epoch=2, skip={2: "1:2"}),
        [[1, 2]],
        batch_size=3,
        seed=4,
        preset="rows",
        balance="micro-step",
        rank=(1, 2),
        topology=Topology(accumulation=5),
        batch=BatchFormat(pad_token_id=6),
    )
    assert dataset.topology == Topology(world_size=2, batch_size=3, balance="micro-step", accumulation=5)
    assert (dataset.run.seed, dataset.epoch, str(dataset.run.skips(2)), str(dataset.run.skips(3))) == (4, 2, "1:2", "")
    assert (dataset.maker.form.preset.name, dataset.maker.form.pad_token_id) == ("rows", 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1, "dataset": Run("corpus", seed=2)}, r"seed is given twice, as 1 and in Run\(seed=2\)"),
        ({"preset": "rows", "batch": BatchFormat(preset="padding-free")}, "preset is given twice"),
        ({"balance": "micro-step", "topology": Topology(balance="optimizer-step")}, "balance is given twice"),
        ({"batch_size": 2, "topology": Topology(batch_size=3)}, "batch_size is given twice"),
        ({"batch_size": 2, "topology": Topology(batch_schedule="0:8")}, "batch_size must be left out"),
        ({"batch_size": None}, "batch_size is missing"),
        ({"topology": Topology(world_size=3), "rank": (0, 2)}, "topology has world_size 3, and this process is one of"),
        ({"topology": Topology(workers_per_rank=2)}, "workers_per_rank of a loader's topology .*num_workers"),
        ({"topology": Topology(start_position=2)}, "start_position of a loader's topology .*load_state_dict"),
        ({"topology": Topology(accumulation=2)}, "accumulation has no effect without a balance"),
    ],
)
def test_what_is_said_twice_or_has_no_effect_is_refused(options, message):
    words = {"batch_size": 1, "dataset": "corpus", "rank": (0, 1)} | options
    with pytest.raises(ValueError, match=message):
        PackedDataset("embedded:nowhere", words.pop("dataset"), [[1, 2]], **words)


def test_rows_have_no_component_rows():
    with pytest.raises(ValueError, match="component_rows has no effect on PackedBins"):
        PackedBins(*CORPUS, batch=BatchFormat(component_rows=True))


def test_a_word_that_both_say_alike_is_given_twice():
    with pytest.raises(ValueError, match="num_workers is given twice"):
        with_arguments(LoaderOptions(num_workers=4), num_workers=4, device=None)
    assert with_arguments(LoaderOptions(num_workers=4), num_workers=None) == LoaderOptions(num_workers=4)


SERVER = [f"packhorse.{name}" for name in ("server", "prepare", "dataset", "epoch", "packing", "compiling")]
UNREAD = ["torch", "numpy", "numba", "pyarrow", "grpc", "google", "lightning", *SERVER]
"""What no option's type is of; mypy would take seconds to read it."""

SNIPPET = """
from packhorse.client import BatchFormat, create_packed_dataloader
create_packed_dataloader("host:1", "corpus", "corpus.idx", batch_size=1, seed=1, num_workers=0, balance="micro-step")
create_packed_dataloader("host:1", "corpus", "corpus.idx", batch_size=1, shift_labels=True)
create_packed_dataloader("host:1", "corpus", "corpus.idx", batch_size=1, seed="one")
BatchFormat(shift_label=True)
"""


def test_mypy_knows_the_options(tmp_path):
    settings = tmp_path / "mypy.ini"
    settings.write_text(
        "[mypy]\nnamespace_packages = true\nexplicit_package_bases = true\n"
        f"mypy_path = {':'.join(str(REPOSITORY / root) for root in ('proto', 'server', 'client'))}\n"
        "follow_imports = silent\nignore_missing_imports = true\n"
        f"[mypy-{','.join(f'{each}.*' for each in UNREAD)}]\nfollow_imports = skip\nfollow_imports_for_stubs = true\n"
    )
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", "--config-file", settings, "--cache-dir", tmp_path / "cache", snippet]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)  # its heap is not ours
    errors = [line.split(":", 2)[1:] for line in told.stdout.splitlines() if ": error:" in line]
    assert [int(line) for line, _ in errors] == [4, 5, 6], told
    assert "shift_labels" in errors[0][1]
    assert "shift_label" in errors[2][1]
