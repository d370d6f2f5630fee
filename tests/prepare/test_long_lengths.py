"""Lengths far apart: memory follows how many there are, not how long the longest is, and the result is the same."""

import tracemalloc
from unittest import mock

import numpy as np
import pytest
from tests import commands
from tests.flat_words import prepare

from packhorse.dataset import open_prepared
from packhorse.prepare import Resource

LENGTHS = np.array([5, 3_000_000_000, 7, 2_000_000_000, 5, 2**31 - 1, 9, 2**31, 40_000_000])
POLICIES = ("drop", "truncate", "split")


@pytest.mark.parametrize("over_length", POLICIES)
def test_the_longest_sequence_takes_no_memory(over_length, tmp_path):
    np.save(tmp_path / "lengths.npy", LENGTHS)
    limit = 12 << 30  # of addresses: a dense array of one thread alone would take 16 GiB
    program = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit})); "
        "from packhorse.dataset import PlanOptions; from packhorse.jobs import Execution; "
        "from packhorse.prepare import prepare; "
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
        f"plan = PlanOptions(max_seq_len=2**31 - 1, over_length={over_length!r}); "
        "prepare(sys.argv[1], output=sys.argv[2], plan=plan, execution=Execution(progress=False)); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    result = commands.run(tmp_path / "lengths.npy", tmp_path / "set", code=program)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 1 << 20  # kB
    dataset = open_prepared(tmp_path / "set")
    longest, lengths = 2**31 - 1, LENGTHS.tolist()
    cut = {
        "drop": [n for n in lengths if n <= longest],
        "truncate": [min(n, longest) for n in lengths],
        "split": [part for n in lengths for part in (longest,) * (n // longest) + ((n % longest,) * (n % longest > 0))],
    }[over_length]
    assert sorted(dataset.plan.rooms.repeat(dataset.plan.counts).tolist()) == sorted(cut)


@pytest.mark.parametrize(
    "options",
    [{"group_size": 2}, {"resources": (Resource(name="tiles", column="tiles", cap=8),)}],
    ids=["groups", "tiles"],
)
def test_groups_and_resources_of_the_longest_bins_take_no_memory(options, tmp_path):
    rows = np.zeros(4, [("length", np.int64), ("tiles", np.int64)])
    rows["length"], rows["tiles"] = [5, 2**31 - 9, 3, 5], [1, 2, 3, 1]
    plan = {"max_seq_len": 2**31 - 1, "length_column": "length", "output": tmp_path / "set"}
    tracemalloc.start()
    try:
        prepare(lengths=rows, progress=False, **plan, **options)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 1 << 28  # a dense array of rooms would take 16 GiB
    assert open_prepared(tmp_path / "set").manifest.total_tokens == rows["length"].sum()


@pytest.mark.parametrize("over_length", POLICIES)
@pytest.mark.parametrize("options", [{}, {"align": 8, "extra_tokens": 1}], ids=["plain", "rooms"])
def test_both_ways_to_count_give_the_same_folder(over_length, options, tmp_path):
    lengths = np.random.default_rng(5).integers(1, 400, 3_000)
    digests = []
    for most_dense in (1 << 22, 50, 1):
        with (
            mock.patch("packhorse.prepare.counting.MOST_DENSE", most_dense),
            mock.patch("packhorse.prepare._spills.MOST_DENSE", most_dense),
        ):
            manifest = prepare(
                lengths=lengths,
                max_seq_len=256,
                over_length=over_length,
                output=tmp_path / str(most_dense),
                progress=False,
                **options,
            )
        digests.append((manifest.digest, manifest.checksums))
    assert digests[0] == digests[1] == digests[2]
