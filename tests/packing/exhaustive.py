"""The fewest bins that sequences fit into, by exhaustive search."""

from hypothesis import strategies as st


def fewest_bins(lengths, max_seq_len, limit):
    """The optimum, by trying every way to put each sequence into a bin that is there, or a new one."""
    best = len(lengths)
    ordered = sorted(lengths, reverse=True)

    def place(index, bins):
        nonlocal best
        if len(bins) >= best:
            return
        if index == len(ordered):
            best = len(bins)
            return
        length = ordered[index]
        for room, size in sorted(set(bins)):
            if room >= length and size < limit:
                rest = list(bins)
                rest.remove((room, size))
                place(index + 1, [*rest, (room - length, size + 1)])
        place(index + 1, [*bins, (max_seq_len - length, 1)])

    place(0, [])
    return best


@st.composite
def small_problems(draw, most):
    """(lengths, of which there are up to `most`; max_seq_len; the most sequences in a bin or None): soon searched."""
    max_seq_len = draw(st.integers(1, 40))
    lengths = draw(st.lists(st.integers(1, max_seq_len), max_size=most))
    limit = draw(st.none() | st.integers(1, 5))
    return lengths, max_seq_len, limit
