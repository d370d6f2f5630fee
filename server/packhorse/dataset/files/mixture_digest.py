"""The digest of a mixture, and the position from which two mixtures differ.

A mixture's chain has a pair for each stage: the position where it begins, and a digest of it and all earlier stages.
Owns the digest's form, the chain's last six pairs as text. The chain is made in `packhorse.epoch`; a dataset's digest
is in `dataset/digest`.
"""

from packhorse.epoch import Chain, first_difference

_STAGES = "stages="

_MOST_STAGES = 6
"""The most stages that a mixture's digest names, the last ones. Their digests cover the earlier stages too."""


def mixture_digest(chain: Chain) -> str:
    """Returns the digest of a mixture with a chain: the last pairs (begin of a stage, its digest) as text.

    Example:
        >>> mixture_digest(((0, "aa"), (500, "bb")))
        'stages=0:aa,500:bb'
    """
    return _STAGES + ",".join(f"{first}:{digest}" for first, digest in chain[-_MOST_STAGES:])


def parts_at(expected: str, chain: Chain) -> int | None:
    """Returns the position of the run from which a mixture differs from the one that the run began with.

    Example:
        >>> parts_at("stages=0:aa", ((0, "aa"), (500, "bb"))), parts_at("11-22-33-44", ((0, "aa"),))
        (500, 0)

    Args:
        expected: the digest that the run began with.
        chain: the chain of the mixture as it is now.

    Returns:
        The position; None if the mixtures are the same; 0 if they have nothing in common, or `expected` is not the
        digest of a mixture.
    """
    begun = _chain_of(expected)
    if not begun:
        return 0
    # `expected` may lack the first stages, so the chains are compared from the first stage that it names.
    if begun[0] not in chain:
        return 0
    return first_difference(begun, chain[chain.index(begun[0]) :])


def _chain_of(digest: str) -> Chain:
    """Returns the pairs in a mixture's digest; none for any other digest."""
    pairs = [pair.partition(":") for pair in digest.removeprefix(_STAGES).split(",")]
    if not digest.startswith(_STAGES) or not all(first.isdecimal() for first, _, _ in pairs):
        return ()
    return tuple((int(first), of_stage) for first, _, of_stage in pairs)
