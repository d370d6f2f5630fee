"""A proof that no plan has fewer bins, which anyone can check without the packer that found it.

Owns the dual certificate and the bound that it proves; leaves finding good prices to `optimal.column_generation`,
checking to `certificate_check`.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DualCertificate:
    """Integer prices for lengths, and the most that any bin can hold at these prices.

    Every bin of every plan is worth at most `bin_worth`, and all sequences together are worth Σ counts · price, so
    there are at least as many bins as the one divides the other, rounded up.

    Source: A. A. Farley, "A note on bounding a class of linear programming problems, including cutting stock
    problems", Operations Research 38 (1990).
    """

    prices: Mapping[int, int]
    """Length in tokens → price, at least 0; a length that is missing has price 0."""
    bin_worth: int
    """No sequences that fit into one bin have a greater sum of prices; above 0."""

    def bound(self, counts: Mapping[int, int]) -> int:
        """Returns the number of bins that a plan for `counts` needs at least, if the certificate holds."""
        return -(-sum(count * self.prices.get(length, 0) for length, count in counts.items()) // self.bin_worth)
