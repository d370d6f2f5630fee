"""What is left out of an input: counted, named, and written down.

Owns the counts of one pass, and the refusal of bad rows. What a text must be is in `text_check`, and the form of the
written list in `ledger`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TextIO

from packhorse.parameters import parameter
from packhorse.tokenize.ledger import Reason, write_entry

Undecodable = Literal["skip", "error"]
"""What happens to text that is binary or not UTF-8."""


OnBadRow = Literal["error", "skip"]
"""What happens to a row that cannot be read or encoded."""


MOST_NAMED = 5
"""How many of the documents left out are named."""


@dataclass(slots=True)
class Skipped:
    """Documents that one pass left out."""

    empty: int = 0
    """Documents of only white space, or null."""
    undecodable: int = 0
    """Documents that are binary or not UTF-8."""
    undecodable_named: list[str] = field(default_factory=list)
    """The first few of them: file, and line if there is one."""
    bad: int = 0
    """Rows that cannot be read or encoded."""
    bad_named: list[str] = field(default_factory=list)
    """The first few of them, with what is wrong."""
    ledger: TextIO | None = None
    """Where each row that is left out is written down; None for nowhere."""

    def leave_out(self, reason: Reason, origin: object, why: str = "") -> None:
        """Writes down a row that was left out and counted."""
        if self.ledger is not None:
            write_entry(self.ledger, str(origin), reason, why)

    def leave_out_empty(self, origin: object) -> None:
        """Counts a row that holds nothing."""
        self.empty += 1
        self.leave_out("empty", origin)

    def refuse_bad(self) -> None:
        """Raises a ValueError that names the bad rows; nothing if there are none."""
        if self.bad:
            raise ValueError(refusal_of(self.bad_named, self.bad))


def refusal_of(named: Sequence[str], count: int) -> str:
    """Returns the message about bad rows: the first ones, each with its fault."""
    message = named[0]
    for number, fault in enumerate(named[1:]):
        message = message + ("; " if number else ". Bad rows too: ") + fault
    rest = f", and {count - len(named):,} more" if count > len(named) else ""
    return message + rest + "; repair them, or leave bad rows out with " + parameter("on_bad_row", "skip")
