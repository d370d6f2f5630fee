"""How often two sequences that share a bin share one again in the next epoch: the expectation for a plan.

Leaves what locality windows change in the order to `shuffle_quality`.

A repeat is the slots of one length in a template, as in `plan_index`: (5, 5, 3) has the repeats 5 × 2 and 3 × 1.

Shape letters: T templates, D distinct lengths.
"""

import numpy as np

from packhorse.epoch.plan_index import PlanIndex


def bin_mates_again(plan: PlanIndex) -> float:
    """Returns the expected share of a sequence's bin-mates that share a bin with it again in the next epoch.

    Every epoch uses the same templates, and distributes the sequences of each length uniformly over the length's slots.
    Let S(A, B) be the number of ordered pairs of slots of lengths A and B that share a bin, and n(A) the number of
    sequences of length A. Then two sequences share a bin with probability S(A, B) / (n(A) n(B)), or, if A = B, with
    S(A, A) / (n(A) (n(A) - 1)). The expectation over all seeds is exact; it is 0.0 if every bin has one sequence.

    Takes O(Σ d²), over templates with d distinct lengths each.

    Example:
        >>> rare = PlanIndex.build({(6, 2): 1, (5, 3): 1}, {6: 1, 5: 1, 3: 1, 2: 1}, 8)
        >>> common = PlanIndex.build({(4, 4): 50}, {4: 100}, 8)
        >>> bin_mates_again(rare), round(bin_mates_again(common), 3)
        (1.0, 0.01)

    Args:
        plan: the plan's tables.
    """
    num_lengths = len(plan.lengths)
    first_repeat, copies = plan.first_repeat.astype(np.int64), plan.repeat_copies.astype(np.float64)
    num_repeats = np.diff(first_repeat)  # [T]
    multiplicity = np.diff(plan.first_bin).astype(np.float64)  # [T]
    counts = plan.counts.astype(np.float64)
    tables = plan.repeat_tables
    pairs_again = pairs = 0.0
    for length in range(num_lengths):  # an index into plan.lengths; A of the docstring
        repeats = tables.repeats_by_length[tables.first_by_length[length] : tables.first_by_length[length + 1]]
        templates = tables.repeat_template[repeats]  # those that hold this length
        sizes = num_repeats[templates]
        ends = np.cumsum(sizes)
        # All repeats of these templates, one template after another, and their lengths: B of the docstring. If two
        # templates have 2 repeats from 5 on and 3 from 9 on, `mates` is 5, 6, 9, 10, 11.
        mates = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first_repeat[templates] - ends + sizes, sizes)
        mate_lengths = plan.repeat_length[mates]
        pairs_of_slots = copies[mates] - (mate_lengths == length)  # of a slot of this length; it is no mate of itself
        weights = np.repeat(multiplicity[templates] * copies[repeats], sizes) * pairs_of_slots
        shared = np.bincount(mate_lengths, weights, num_lengths)  # [D], S(A, B) for each B
        others = counts - (np.arange(num_lengths) == length)  # [D], sequences of B that may be a mate
        pairs += shared.sum()
        known = shared > 0
        pairs_again += (shared[known] ** 2 / (counts[length] * others[known])).sum()
    return float(pairs_again / pairs) if pairs else 0.0
