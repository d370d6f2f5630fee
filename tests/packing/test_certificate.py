"""The check of certificates refuses what is no proof."""

import pytest

from packhorse.packing import DualCertificate, check_certificate


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
