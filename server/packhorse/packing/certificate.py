"""The plain check of a dual certificate.

Owns one slow, obvious dynamic program in Python's own integers; shares nothing with the packer that found the proof.
"""

from collections.abc import Mapping

from packhorse.packing.plan import DualCertificate, checked_counts


def check_certificate(
    certificate: DualCertificate,
    counts: Mapping[int, int],
    max_seq_len: int,
    *,
    max_sequences_per_bin: int | None = None,
) -> int:
    """Checks a certificate in Python's own integers, with nothing taken from the packer.

    Example:
        >>> proof = DualCertificate(prices={6: 1}, bin_worth=1)  # a bin of 10 holds one sequence of 6 at most
        >>> check_certificate(proof, {6: 3}, max_seq_len=10)
        3

    Args:
        certificate: what to check.
        counts: length in tokens → number of sequences.
        max_seq_len: a bin's capacity in tokens.
        max_sequences_per_bin: the most sequences in a bin; None for no limit.

    Returns:
        The lower bound on the number of bins that it proves. In O(distinct lengths · max_seq_len), times the limit
        where one binds: slow, and meant to be plain.

    Raises:
        ValueError: the counts are no histogram, a price is negative, or a bin can be worth more than it says.
    """
    pairs, limit = checked_counts(counts, max_seq_len, max_sequences_per_bin)
    priced = [(length, certificate.prices.get(length, 0)) for length, _ in pairs]
    if certificate.bin_worth < 1 or any(worth < 0 for _, worth in priced):
        raise ValueError("certificate: prices must be at least 0 and bin_worth at least 1")
    best = [0] * (max_seq_len + 1)  # the greatest worth of c tokens in as many sequences as there were rounds
    for _ in range(min(limit, max_seq_len // pairs[-1][0]) if pairs else 0):
        longer = list(best)
        for length, worth in priced:
            for tokens in range(length, max_seq_len + 1):
                longer[tokens] = max(longer[tokens], best[tokens - length] + worth)
        if longer == best:
            break
        best = longer
    if best[-1] > certificate.bin_worth:
        raise ValueError(f"certificate: a bin can be worth {best[-1]}, more than bin_worth {certificate.bin_worth}")
    return certificate.bound(counts)
