"""Keys as people write them among ids.

Owns which texts are keys: a bare whole number is always an id. Leaves the table of a dataset's keys to
`packhorse.dataset`, and the file of keys beside tokens to `beside_tokens`.
"""

import json
import re

MOST_KEY_BYTES = 8192
"""Most bytes of a key in UTF-8: more than the longest URL that browsers and servers agree upon."""

_IDS = re.compile(r"(?a:[-+\d,\s]*(#.*)?)")
"""A line that holds ids, or only a comment, or nothing."""


def shown_key(key: str) -> str:
    r"""Returns a key as it is, or as a JSON string if it could be misread, such as a key of digits.

    Example:
        >>> shown_key("https://example.org/a"), shown_key("17"), shown_key("two\nlines")
        ('https://example.org/a', '"17"', '"two\\nlines"')
    """
    is_plain = key.isprintable() and key == key.strip() and not key.startswith('"') and not _IDS.fullmatch(key)
    return key if is_plain else json.dumps(key, ensure_ascii=not key.isprintable())


def read_key(text: str) -> str:
    r"""Returns the key that `shown_key` writes as `text`.

    Example:
        >>> read_key("https://example.org/a"), read_key('"17"'), read_key('"two\\nlines"')
        ('https://example.org/a', '17', 'two\nlines')

    Raises:
        ValueError: the text begins with a quote and is not a JSON string, or is not a key.
    """
    key = text
    if text.startswith('"'):
        try:
            key = json.loads(text)
        except ValueError:
            raise ValueError(
                f"{text:.60} begins with a quote but is not a JSON string; write the key as JSON does"
            ) from None
    check_key(key)
    return key


def check_key(key: str) -> None:
    """Raises a ValueError for a text that is empty, has more than 8,192 bytes, or cannot be written in UTF-8.

    Example:
        >>> check_key("https://example.org/a")
    """
    try:
        num_bytes = len(key.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{key[:60]!r} is not a key: UTF-8 cannot write it") from None
    if not 0 < num_bytes <= MOST_KEY_BYTES:
        problem = f"{key[:60]}… has {num_bytes:,} bytes" if num_bytes else "an empty text is not a key"
        raise ValueError(f"{problem}; a key has 1 to {MOST_KEY_BYTES:,} bytes in UTF-8")


def ids_and_keys(text: str, name: str) -> tuple[list[int], list[str]]:
    r"""Reads ids and keys from lines: a line holds one key, or any number of ids with commas or spaces between.

    A line of whole numbers holds ids, and a # begins a comment there; a line that begins with # is a comment. Any other
    line is a key as a whole. A key that looks like ids, or contains a line break, is written in quotes, as JSON.

    Example:
        >>> ids_and_keys('17, 4 # private\nhttps://example.org/a#b\n"4711"', "gone.txt")
        ([17, 4], ['https://example.org/a#b', '4711'])

    Raises:
        ValueError: a line holds neither; the message begins with `name`, which is the file's or option's.
    """
    ids: list[int] = []
    keys: list[str] = []
    for line_number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        try:
            if stripped.isdigit() and stripped.isascii():  # nearly every one of millions of lines: one id, no pattern
                ids.append(int(stripped))
            elif _IDS.fullmatch(stripped):
                ids += [int(word) for word in stripped.partition("#")[0].replace(",", " ").split()]
            else:
                keys.append(read_key(stripped))
        except ValueError as error:
            raise ValueError(f"{name}, line {line_number}: {error}") from None
    return ids, keys
