"""The digest of a mixture, and where two mixtures part.

Owns its form: the last stages, with the digest of all up to each. A dataset's digest is in `digest`.
"""

from packhorse.epoch import Chain, first_difference

_STAGES = "stages="


_MOST_STAGES = 6
"""Stages that a mixture's digest names: the last ones, whose digests cover those before."""


def mixture_digest(chain: Chain) -> str:
    """Returns the digest of a mixture: where each of its last stages begins, and the digest of all up to there.

    Example:
        >>> mixture_digest(((0, "aa"), (500, "bb")))
        'stages=0:aa,500:bb'
    """
    return _STAGES + ",".join(f"{first}:{digest}" for first, digest in chain[-_MOST_STAGES:])


def parts_at(expected: str, chain: Chain) -> int | None:
    """Returns the position of the run at which a mixture departs from the one that a run began with.

    Example:
        >>> parts_at("stages=0:aa", ((0, "aa"), (500, "bb"))), parts_at("11-22-33-44", ((0, "aa"),))
        (500, 0)

    Args:
        expected: the digest that the run began with.
        chain: of the mixture.

    Returns:
        None if they are the same; 0 if they have nothing in common, as with a digest of something else.
    """
    begun = _chain_of(expected)
    if not begun:
        return 0
    alike = [number for number, stage in enumerate(chain) if stage == begun[0]]
    return first_difference(begun, chain[alike[0] :]) if alike else 0


def _chain_of(digest: str) -> Chain:
    """Returns what a mixture's digest names; nothing for any other digest."""
    pairs = [pair.partition(":") for pair in digest.removeprefix(_STAGES).split(",")]
    if not digest.startswith(_STAGES) or not all(first.isdecimal() for first, _, _ in pairs):
        return ()
    return tuple((int(first), of_stage) for first, _, of_stage in pairs)
