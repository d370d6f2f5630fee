"""Keys as people write and read them where they also write ids, and the file of keys beside Megatron's files.

Owns what may be a key, and that a bare whole number is always an id. Leaves the table of a dataset's keys to
`packhorse.dataset`.
"""

import json
import os
import re
from pathlib import Path

from packhorse.formats.megatron import megatron_paths

MOST_KEY_BYTES = 8192
"""A longer key is refused; in UTF-8. The longest URL that browsers and servers agree upon is shorter."""

KEY_COLUMN = "key"
"""The only column of a file of `keys_path`."""

NUM_TOKENS = "packhorse.tokens"
"""What such a file's schema says of the tokens that it belongs to: how many there are."""

_IDS = re.compile(r"(?a:[-+\d,\s]*(#.*)?)")


def shown_key(key: str) -> str:
    r"""Returns a key as text for people: as it is, or as JSON writes it where that could be misread.

    Example:
        >>> shown_key("https://example.org/a"), shown_key("17"), shown_key("two\nlines")
        ('https://example.org/a', '"17"', '"two\\nlines"')

    Args:
        key: any text.
    """
    is_plain = key.isprintable() and key == key.strip() and not key.startswith('"') and not _IDS.fullmatch(key)
    return key if is_plain else json.dumps(key, ensure_ascii=not key.isprintable())


def read_key(text: str) -> str:
    r"""Returns the key that `shown_key` shows as a text.

    Example:
        >>> read_key("https://example.org/a"), read_key('"17"'), read_key('"two\\nlines"')
        ('https://example.org/a', '17', 'two\nlines')

    Args:
        text: a key, or a key in quotes.

    Raises:
        ValueError: it begins with a quote and is no JSON string, or no key.
    """
    key: object = text
    if text.startswith('"'):
        try:
            key = json.loads(text)
        except (ValueError, RecursionError):
            key = None
        if not isinstance(key, str):
            raise ValueError(f"{text:.60} begins with a quote and is no JSON string: write the key as JSON does")
    assert isinstance(key, str)
    check_key(key)
    return key


def check_key(key: str) -> None:
    """Refuses what is no key, by a ValueError: nothing, more than 8,192 bytes, or half of a character.

    Example:
        >>> check_key("https://example.org/a")

    Args:
        key: the text.
    """
    try:
        num_bytes = len(key.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{key[:60]!r} is no text that UTF-8 can write, and so no key") from None
    if not 0 < num_bytes <= MOST_KEY_BYTES:
        said = f"{key[:60]}… has {num_bytes:,} bytes" if num_bytes else "an empty text is no key"
        raise ValueError(f"{said}; a key has 1 to {MOST_KEY_BYTES:,} bytes in UTF-8")


def ids_and_keys(text: str, name: str) -> tuple[list[int], list[str]]:
    r"""Reads ids and keys, a key a line; ids may stand in one line, with commas or spaces between.

    A line of whole numbers holds ids, and what follows a # there is a comment; a line that begins with # is one. Any
    other line is a key as a whole. A key that looks like ids, or has a line's end in it, is written in quotes, as JSON.

    Example:
        >>> ids_and_keys('17, 4 # private\nhttps://example.org/a#b\n"4711"', "gone.txt")
        ([17, 4], ['https://example.org/a#b', '4711'])

    Args:
        text: of a file or an option.
        name: of it, for messages.

    Raises:
        ValueError: a line is neither.
    """
    ids: list[int] = []
    keys: list[str] = []
    for line_number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        try:
            if _IDS.fullmatch(stripped):
                ids += [int(word) for word in stripped.partition("#")[0].replace(",", " ").split()]
            else:
                keys.append(read_key(stripped))
        except ValueError as error:
            raise ValueError(f"{name}, line {line_number}: {error}") from None
    return ids, keys


def keys_path(index: str | os.PathLike[str]) -> Path:
    """Returns the file of the keys of Megatron's files `X.bin` and `X.idx`: `X.keys.arrow`.

    It is an Arrow file of one column, `key`, with a row for each sequence.

    Example:
        >>> keys_path("data/corpus.idx").name
        'corpus.keys.arrow'

    Args:
        index: either file, or the prefix X.
    """
    return megatron_paths(index)[1].with_suffix(".keys.arrow")
