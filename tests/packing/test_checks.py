"""What the packers refuse, and that their messages name it."""

import subprocess
import sys

import numpy as np
import pytest

from packhorse.packing import lower_bound, pack_histogram
from packhorse.topology import checked_integer


@pytest.mark.parametrize("function", [pack_histogram, lower_bound])
@pytest.mark.parametrize(
    ("counts", "max_seq_len", "limit", "message"),
    [
        ({1.0: 3}, 8, None, "every length in counts.*got 1.0"),
        ({2.5: 3}, 8, None, "every length in counts.*got 2.5"),
        ({True: 3}, 8, None, "every length in counts.*got True"),
        ({"4": 3}, 8, None, "every length in counts.*got '4'"),
        ({None: 3}, 8, None, "every length in counts.*got None"),
        ({0: 3}, 8, None, "every length in counts.*got 0"),
        ({-4: 3}, 8, None, "every length in counts.*got -4"),
        ({0: 0}, 8, None, "every length in counts.*got 0"),
        ({9: 3}, 8, None, "length 9 is over max_seq_len 8.*truncate"),
        ({9: 0}, 8, None, "length 9 is over max_seq_len 8"),
        ({2**40: 3}, 8, None, "over max_seq_len 8"),
        ({4: -1}, 8, None, "count of length 4.*got -1"),
        ({4: 2.0}, 8, None, "count of length 4.*got 2.0"),
        ({4: float("nan")}, 8, None, "count of length 4.*got nan"),
        ({4: False}, 8, None, "count of length 4.*got False"),
        ({4: "2"}, 8, None, "count of length 4.*got '2'"),
        ({4: None}, 8, None, "count of length 4.*got None"),
        ({4: 1}, 0, None, "max_seq_len.*got 0"),
        ({4: 1}, -8, None, "max_seq_len.*got -8"),
        ({4: 1}, 8.0, None, "max_seq_len.*got 8.0"),
        ({4: 1}, True, None, "max_seq_len.*got True"),
        ({4: 1}, "8", None, "max_seq_len.*got '8'"),
        ({4: 1}, None, None, "max_seq_len.*got None"),
        ({2**65: 1}, 2**66, None, "max_seq_len"),
        ({4: 1}, 8, 0, "max_sequences_per_bin.*got 0"),
        ({4: 1}, 8, -1, "max_sequences_per_bin.*got -1"),
        ({4: 1}, 8, 2.0, "max_sequences_per_bin.*got 2.0"),
        ({4: 1}, 8, True, "max_sequences_per_bin.*got True"),
    ],
)
def test_bad_input_is_named(function, counts, max_seq_len, limit, message):
    with pytest.raises(ValueError, match=message):
        function(counts, max_seq_len, max_sequences_per_bin=limit)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_time_limit_must_be_above_zero(seconds):
    with pytest.raises(ValueError, match="time_limit_seconds"):
        pack_histogram({1: 1}, 4, time_limit_seconds=seconds)


def test_unknown_algorithm_names_those_there_are():
    with pytest.raises(ValueError, match=r"'wurst-fit'.*auto, balanced, best-fit"):
        pack_histogram({1: 1}, 4, algorithm="wurst-fit")


def test_without_the_shelf_its_packers_are_unknown():
    """`auto` and the packers of the core plan as ever, and the message names them."""
    code = """
import sys
sys.modules["packhorse.reference_packers"] = None  # as if it were left out
from packhorse.packing import PACKERS, pack_histogram
assert [*PACKERS] == ["balanced", "best-fit", "optimal", "worst-fit", "worst-fit-batched"]
for algorithm in ("auto", "best-fit", "worst-fit"):
    pack_histogram({5: 2, 3: 2}, 8, algorithm=algorithm)
pack_histogram({5: 2, 3: 2}, 8, algorithm="first-fit")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = done.stderr.splitlines()[-1]
    assert "ValueError: unknown algorithm='first-fit'; there are: auto, balanced, best-fit, optimal, worst-fit" in said


@pytest.mark.parametrize("counts", [{}, {3: 0}, {3: 0, 4: 0}])
def test_no_sequences_is_a_plan_without_bins(counts):
    plan = pack_histogram(counts, 8)
    assert not plan.templates
    assert (plan.num_bins, plan.lower_bound) == (0, 0)


def test_bins_of_one_token():
    plan = pack_histogram({1: 7}, 1)
    assert plan.templates == {(1,): 7}
    assert plan.gap == 0.0


@pytest.mark.parametrize("kind", [np.int16, np.int32, np.uint16, np.int64, np.uint64])
def test_numpy_integers_plan_like_python_ones(kind):
    """A NumPy capacity must not wrap around in products with the number of bins."""
    counts = {700: 10**9, 600: 10**9, 300: 3 * 10**9}
    plan = pack_histogram({kind(n): np.int64(c) for n, c in counts.items()}, kind(1000))
    expected = pack_histogram(counts, 1000)
    assert plan == expected
    assert plan.efficiency == expected.efficiency
    assert lower_bound(counts, kind(1000), max_sequences_per_bin=kind(3)) == lower_bound(
        counts, 1000, max_sequences_per_bin=3
    )
    assert all(type(length) is int for template in plan.templates for length in template)


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3)])
def test_checked_integer_returns_python_ints(value):
    assert type(checked_integer("x", value, 0, 3)) is int
    assert checked_integer("x", value, 3, 3) == 3


@pytest.mark.parametrize("value", [2, 8, 3.0, "3", None, True, np.bool_(True), np.float64(3)])
def test_checked_integer_names_the_value_and_its_range(value):
    with pytest.raises(ValueError, match=r"x must be an integer in \[3, 7\], got"):
        checked_integer("x", value, 3, 7)


def test_importing_needs_numpy_only():
    code = "import sys, packhorse.packing; print(sorted({'numba', 'highspy', 'scipy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
