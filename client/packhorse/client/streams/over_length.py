"""What an over-length policy means for whoever fills rooms with tokens."""


def cuts_ends(over_length: str, keep: str) -> bool:
    """Whether a sequence may go on behind what is in its room: it was cut off there, or split.

    Example:
        >>> cuts_ends("truncate", "head"), cuts_ends("truncate", "tail"), cuts_ends("split", "head")
        (True, False, True)

    Args:
        over_length: what was done at prepare with sequences that do not fit a bin.
        keep: which end of a truncated one was kept.
    """
    return over_length == "split" or (over_length, keep) == ("truncate", "head")
