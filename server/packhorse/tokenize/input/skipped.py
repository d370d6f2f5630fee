"""Documents and rows that one pass over the input leaves out: counted, named, and listed in a file.

Owns where they are counted, what may happen to them, and the error about bad rows. Who reads an input counts its bad
and undecodable rows here, and names the first ones. The rules for leaving out a text are in `text_check`, and the form
of the list is in `ledger`.
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
"""The most documents or rows of each kind that summaries and errors name."""


@dataclass(slots=True)
class Skipped:
    """Counts of the documents and rows that one pass left out."""

    empty: int = 0
    """Documents of only white space, or null."""
    undecodable: int = 0
    """Documents that are binary or not UTF-8."""
    undecodable_named: list[str] = field(default_factory=list)
    """The first few of these documents: file, and line if there is one."""
    bad: int = 0
    """Rows that cannot be read or encoded."""
    bad_named: list[str] = field(default_factory=list)
    """The first few of these rows, with what is wrong."""
    ledger: TextIO | None = None
    """The open list to which each row left out is written; None for no list."""

    def leave_out(self, reason: Reason, origin: object, why: str = "") -> None:
        """Adds a row that is left out to the list. The caller counts it."""
        if self.ledger is not None:
            write_entry(self.ledger, str(origin), reason, why)

    def leave_out_empty(self, origin: object) -> None:
        """Counts an empty row, and adds it to the list."""
        self.empty += 1
        self.leave_out("empty", origin)

    def refuse_bad(self) -> None:
        """Raises a ValueError that names the first bad rows, if there are any."""
        if self.bad:
            raise ValueError(refusal_of(self.bad_named, self.bad))


def refusal_of(named: Sequence[str], count: int) -> str:
    """Returns the message about bad rows: the first ones, each with its fault."""
    message, *others = named
    for number, fault in enumerate(others):  # added by +, because faults remember which of their words are parameters
        message = message + ("; " if number else ". Bad rows too: ") + fault
    if count > len(named):
        message = message + f", and {count - len(named):,} more"
    return message + "; repair them, or leave bad rows out with " + parameter("on_bad_row", "skip")
