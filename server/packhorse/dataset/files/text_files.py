"""The text of a small file that people and commands change. Leaves replacing it to `packhorse.storage`."""

from pathlib import Path


def text_of(path: Path, most_bytes: int, error: type[ValueError]) -> str:
    """Reads a file, up to a size.

    Example:
        >>> size = Path("note.txt").write_text("a text")
        >>> text_of(Path("note.txt"), 100, ValueError)
        'a text'

    Args:
        path: of the file.
        most_bytes: a larger file is refused.
        error: what is raised.

    Raises:
        ValueError: as `error`: the file cannot be read, is too large, or is no text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
        if len(data) > most_bytes:
            raise error(f"{path.name} has more than {most_bytes:,} bytes")
        return data.decode("utf-8-sig")  # some editors mark a text by a first character that TOML refuses
    except UnicodeDecodeError as caught:
        raise error(f"{path.name} is no text in UTF-8: {caught}") from None
    except OSError as caught:
        raise error(f"{path.name} cannot be read: {caught.strerror}") from None
