"""What all reference pages look like.

Owns headings, tables and the error of what has no description; leaves what stands on a page to its file.
"""

GENERATED = "<!-- Written by `make reference` from the code; not edited by hand. -->"


class UndocumentedError(Exception):
    """Something public has no description."""


def cell(text: str) -> str:
    """A text as it may stand in a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(title: str, first: str, *parts: str) -> str:
    """A page: its title, what it is about, and the rest."""
    return "\n".join([f"# {title}\n", GENERATED + "\n", first + "\n", *parts])
