"""Checks of a text before it becomes a document: UTF-8, not empty, not binary, without refused special tokens.

Owns the checks and their messages. Counts of what is left out are in `skipped`.
"""

from dataclasses import dataclass

from packhorse.parameters import parameter
from packhorse.tokenize.encoding.special_texts import SpecialTexts
from packhorse.tokenize.input.skipped import MOST_NAMED, OnBadRow, Skipped, Undecodable

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""The mark with which a file in UTF-8 may begin; it is no part of the text."""
_FOREIGN_MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""Byte order mark → encoding; those of UTF-32 come first, because one begins like UTF-16."""


@dataclass(frozen=True, slots=True)
class TextCheck:
    """Checks texts one by one. A text that is not good is counted as left out.

    An `origin` is any object that, printed, says where the text is.
    """

    undecodable: Undecodable
    """What happens to bytes or text that have no UTF-8 form."""
    skipped: Skipped
    """Where texts that are left out are counted and named."""
    on_bad_row: OnBadRow = "error"
    """What happens to a bad row."""
    special: SpecialTexts | None = None
    """Special tokens; a text that spells one is a bad row. None for no such check."""

    def bad(self, origin: object, fault: str) -> None:
        """Counts a bad row. If bad rows are errors, raises a ValueError at the bad row with number MOST_NAMED.

        So one error names several bad rows. If there are fewer, the caller raises it after the last row, by
        `Skipped.refuse_bad`. The `fault` may begin with the origin, which the list of rows left out has in a field of
        its own.
        """
        self.skipped.bad += 1
        if len(self.skipped.bad_named) < MOST_NAMED:
            self.skipped.bad_named.append(fault)
        if self.on_bad_row == "error":
            if self.skipped.bad == MOST_NAMED:
                self.skipped.refuse_bad()
        else:
            self.skipped.leave_out("bad", origin, fault.removeprefix(str(origin)).lstrip(" :"))

    def decode(self, data: bytes, origin: object) -> str | None:
        """Decodes and checks bytes that should be UTF-8; returns None if they are left out.

        A null byte means that they are binary, or in UTF-16 or UTF-32.
        """
        if b"\0" in data:
            encoding = foreign_encoding(data)
            why = f"is {encoding}, not UTF-8" if encoding else "holds null bytes, so it is binary"
            self.refuse(origin, why, encoding=encoding)
            return None
        try:
            text = data.removeprefix(BYTE_ORDER_MARK).decode()
        except UnicodeDecodeError as error:
            self.refuse(origin, f"is not UTF-8: {error.reason} at byte {error.start}")
            return None
        return self.text(text, origin)

    def text(self, text: str | None, origin: object) -> str | None:
        """Checks decoded text; returns None if it is left out. A good text is never empty."""
        if text is None or not text.strip():
            self.skipped.leave_out_empty(origin)
            return None
        if not text.isascii():
            try:
                text.encode()  # fails at a surrogate, which JSON can spell as \ud800
            except UnicodeEncodeError as error:
                self.refuse(origin, f"has no UTF-8 form: {error.reason} at character {error.start}")
                return None
        found = None if self.special is None else self.special.first_in(text)
        if found is not None:
            self.bad(
                origin,
                f"{origin} spells the special token {found!r}; write such texts as text with "
                + parameter("special_in_text", "text")
                + ", or as the token with "
                + parameter("special_in_text", "keep"),
            )
            return None
        return text

    def refuse(self, origin: object, why: str, *, encoding: str = "") -> None:
        """Counts a document that is not text, or raises a ValueError if `undecodable` is "error".

        `encoding` is its encoding, which the summary then tells; empty if it is not known.
        """
        if self.undecodable == "error":
            raise ValueError(
                f"{origin} {why}; leave it out, or skip such text with " + parameter("undecodable", "skip")
            )
        self.skipped.undecodable += 1
        self.skipped.leave_out("undecodable", origin, why)
        if len(self.skipped.undecodable_named) < MOST_NAMED:
            self.skipped.undecodable_named.append(f"{origin} ({encoding})" if encoding else str(origin))


def foreign_encoding(head: bytes) -> str:
    """Returns "UTF-16" or "UTF-32" if the first bytes of a file are in that encoding; else an empty text.

    Without a byte order mark, UTF-16 is recognized by zeros at every other byte, if the text begins like JSON.
    """
    for mark, name in _FOREIGN_MARKS.items():
        if head.startswith(mark):
            return name
    as_little_endian, as_big_endian = head[:4], head[1:2] + head[:1] + head[3:4] + head[2:3]
    for two_characters in (as_little_endian, as_big_endian):
        match list(two_characters):  # `{"` is "{", 0, '"', 0
            case [first, 0, second, 0] if first in b'{["' and second:
                return "UTF-16"
    return ""


def refuse_encoding(head: bytes, where: str) -> None:
    """Raises a ValueError if a file of rows begins like UTF-16 or UTF-32."""
    if encoding := foreign_encoding(head):
        raise ValueError(
            f"{where} is {encoding}, not UTF-8; write it again, as with `iconv -f {encoding} -t UTF-8 FILE > NEW`"
        )
