"""Histograms to pack, and a plain packer that places them sequence by sequence."""

from collections import Counter

from hypothesis import strategies as st


@st.composite
def histograms(draw, most_count=12):
    capacity = draw(st.integers(1, 60))
    counts = draw(st.dictionaries(st.integers(1, capacity), st.integers(0, most_count), max_size=10))
    return counts, capacity, draw(st.none() | st.integers(1, 7))


def one_by_one(lengths, capacity, limit, choose):
    """Longest first, each into the bin that `choose` prefers (smallest), of those with room for it."""
    bins = []  # [room, order of opening, last touched, lengths]
    for stamp, length in enumerate(sorted(lengths, reverse=True)):
        fitting = [b for b in bins if b[0] >= length and len(b[3]) < limit]
        if fitting:
            chosen = min(fitting, key=choose)
        else:
            chosen = [capacity, len(bins), stamp, []]
            bins.append(chosen)
        chosen[0] -= length
        chosen[2] = stamp
        chosen[3].append(length)
    return Counter(tuple(b[3]) for b in bins)
