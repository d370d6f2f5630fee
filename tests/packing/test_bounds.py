"""Lower bounds against exhaustive search and their textbook definition; wrong proofs are refused."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.packing.exhaustive import fewest_bins, small_problems

from packhorse.packing import DualCertificate, check_certificate, lower_bound, pack_histogram


def textbook_bound(lengths, max_seq_len, limit):
    """The largest of the continuous, the cardinality and Martello and Toth's L2 over every integer threshold."""
    if not lengths:
        return 0
    bounds = [-(-sum(lengths) // max_seq_len), -(-len(lengths) // limit)]
    for threshold in range(max_seq_len // 2 + 1):
        alone = [n for n in lengths if n > max_seq_len - threshold]
        long = [n for n in lengths if max_seq_len / 2 < n <= max_seq_len - threshold]
        short = [n for n in lengths if threshold <= n <= max_seq_len / 2]
        excess = sum(short) - (len(long) * max_seq_len - sum(long))
        bounds.append(len(alone) + len(long) + max(0, -(-excess // max_seq_len)))
    return max(bounds)


@given(small_problems(most=8))
@settings(max_examples=200)
def test_never_above_the_optimum(case):
    lengths, max_seq_len, limit = case
    counts = Counter(lengths)
    optimum = fewest_bins(lengths, max_seq_len, limit or max_seq_len)
    assert lower_bound(counts, max_seq_len, max_sequences_per_bin=limit) <= optimum
    assert optimum <= pack_histogram(counts, max_seq_len, max_sequences_per_bin=limit).num_bins


@given(small_problems(most=40))
@settings(max_examples=300)
def test_equals_the_textbook_definition(case):
    lengths, max_seq_len, limit = case
    expected = textbook_bound(lengths, max_seq_len, limit or max_seq_len)
    assert lower_bound(Counter(lengths), max_seq_len, max_sequences_per_bin=limit) == expected


@pytest.mark.parametrize(
    ("counts", "max_seq_len", "limit", "expected"),
    [
        ({}, 10, None, 0),
        ({3: 0}, 10, None, 0),
        ({6: 4}, 10, None, 4),  # longer than half: each needs a bin, though 24 tokens would fill 3
        ({6: 2, 5: 2}, 10, None, 3),  # 22 tokens fill 3 bins, and a 5 fits beside no 6
        ({6: 3, 5: 3}, 10, None, 5),  # L2 only: three bins for the 6s, two more for the 5s, though 33 tokens fill 4
        ({1: 10}, 100, 3, 4),  # cardinality: ten sequences, three a bin
        ({1: 10}, 100, 1, 10),
        ({4: 3}, 10, 10**9, 2),
    ],
)
def test_worked_cases(counts, max_seq_len, limit, expected):
    assert lower_bound(counts, max_seq_len, max_sequences_per_bin=limit) == expected


@given(small_problems(most=30), st.integers(2**62, 2**70))
@settings(max_examples=50)
def test_counts_beyond_64_bits(case, scale):
    """Scaled counts reach the exact fractions of the bound, so no product may have wrapped around."""
    lengths, max_seq_len, limit = case
    counts = {length: count * scale for length, count in Counter(lengths).items()}
    bound = lower_bound(counts, max_seq_len, max_sequences_per_bin=limit)
    single = lower_bound(Counter(lengths), max_seq_len, max_sequences_per_bin=limit)
    assert (single - 1) * scale < bound <= single * scale or not lengths
    assert bound * max_seq_len >= sum(length * count for length, count in counts.items())


def test_bound_is_rounded_up():
    """At half a bin for a 5 and a whole one for a 6, eleven sequences of 5 and two of 6 are worth 7.5 bins."""
    certificate = DualCertificate(prices={6: 2, 5: 1}, bin_worth=2)
    assert check_certificate(certificate, {6: 2, 5: 11}, 10) == 8
    assert check_certificate(certificate, {6: 2, 5: 10, 1: 10}, 10) == 7
    assert check_certificate(certificate, {}, 10) == 0


def test_exact_for_counts_beyond_floats():
    certificate = DualCertificate(prices={1: 1}, bin_worth=3)
    assert check_certificate(certificate, {1: 3 * 10**30 + 1}, 3) == 10**30 + 1


@pytest.mark.parametrize(
    ("prices", "bin_worth"),
    [({6: 2, 5: 1}, 1), ({6: 2, 4: 1}, 2), ({6: -1}, 2), ({}, 0)],
)
def test_what_is_no_proof_is_refused(prices, bin_worth):
    with pytest.raises(ValueError, match="certificate"):
        check_certificate(DualCertificate(prices=prices, bin_worth=bin_worth), {6: 3, 5: 3, 4: 3}, 10)


def test_the_limit_of_sequences_counts():
    """Three 3s fit by their tokens, two by the limit."""
    certificate = DualCertificate(prices={3: 1}, bin_worth=2)
    assert check_certificate(certificate, {3: 9}, 10, max_sequences_per_bin=2) == 5
    with pytest.raises(ValueError, match="can be worth 3"):
        check_certificate(certificate, {3: 9}, 10)
