"""Which text becomes a document: what is neither empty nor undecodable.

Owns that judgement and the count of what it leaves out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Undecodable = Literal["skip", "error"]
"""What happens to text that is binary or not UTF-8."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MOST_NAMED = 5
"""How many of what was left out are named."""


@dataclass(slots=True)
class Skipped:
    """What one pass over the documents left out."""

    empty: int = 0
    """Documents of nothing but white space; null counts too."""
    undecodable: int = 0
    """Documents that are binary or not UTF-8."""
    undecodable_named: list[str] = field(default_factory=list)
    """The first few of them: file, and line where there is one."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Lets text through that is neither empty nor undecodable, and counts the rest. Yields at most one document.

    An origin says where the text stands, once it is made a string.
    """

    undecodable: Undecodable
    skipped: Skipped

    def decode(self, data: bytes, origin: object) -> Iterator[str]:
        """Takes bytes that should be UTF-8; a null byte says that they are not text."""
        if b"\0" in data:
            self.refuse(origin, "holds null bytes, so it is binary")
            return
        try:
            text = data.removeprefix(BYTE_ORDER_MARK).decode()
        except UnicodeDecodeError as error:
            self.refuse(origin, f"is not UTF-8: {error.reason} at byte {error.start}")
            return
        yield from self.text(text, origin)

    def text(self, text: str | None, origin: object) -> Iterator[str]:
        """Takes text that came decoded."""
        if text is None or not text.strip():
            self.skipped.empty += 1
            return
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                self.refuse(origin, f"has no UTF-8 form: {error.reason} at character {error.start}")
                return
        yield text

    def refuse(self, origin: object, why: str) -> None:
        """Counts a document that is not text, or raises a ValueError where such are errors."""
        if self.undecodable == "error":
            raise ValueError(f"{origin} {why}; leave it out, or skip such text with --undecodable skip")
        self.skipped.undecodable += 1
        if len(self.skipped.undecodable_named) < MOST_NAMED:
            self.skipped.undecodable_named.append(str(origin))
