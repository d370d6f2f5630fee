"""Writes what is public into a record of this version, `tests/surface/VERSION.txt`; with --check it only compares.

Owns the records. Run it once for each release, before its tag, and before the first release whenever a name goes. The
record of a release that has a tag is never written again: it is what the release promised.
"""

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "docs")]

from names import public_names

from packhorse.deprecations import DECLARED, minor_of

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
_MARK = "  # goes in "


def text_of(names: Iterable[str], going: dict[str, str]) -> str:
    """A record: a name a line, and behind one that warns the release without it."""
    return "".join(f"{name}{_MARK + going[name] if name in going else ''}\n" for name in sorted(names))


def read_record(text: str) -> dict[str, str | None]:
    """Name → the release without it if the recorded one warns, else None."""
    lines = (line.partition(_MARK) for line in text.splitlines())
    return {name: removed or None for name, _, removed in lines}


def newest_record(folder: Path = FOLDER) -> Path:
    """Of the last release, or of the next one if none is out."""
    return max(folder.glob("*.txt"), key=lambda path: tuple(map(int, path.stem.split("."))))


def gone_too_early(recorded: dict[str, str | None], names: set[str], version: str) -> list[str]:
    """Recorded names that are missing, without the warning of the recorded release that this one lacks them."""

    def may_go(name: str) -> bool:
        owners = (name[:i] for i, character in enumerate(name) if character in ".( {")
        warned = [removed for each in (name, *owners) if (removed := recorded.get(each)) is not None]
        return any(minor_of(removed) <= minor_of(version) for removed in warned)

    return sorted(name for name in recorded if name not in names and not may_go(name))


def has_tag(version: str) -> bool:
    listed = subprocess.run(["git", "tag", "--list", f"v{version}"], cwd=ROOT, capture_output=True, text=True)
    return bool(listed.stdout.strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when the record is stale")
    path = FOLDER / f"{VERSION}.txt"
    names = public_names()
    text = text_of(names, {name: found.removed for name, found in DECLARED.items()})
    if parser.parse_args().check:
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"stale: {path.name}; run python tests/surface/record.py and commit what it writes")
    elif has_tag(VERSION):
        sys.exit(f"{VERSION} is released, and its record stays; raise the version in pyproject.toml first")
    else:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
