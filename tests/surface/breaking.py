"""What breaks code that ran with the last release: griffe's comparison of two source trees, for public names only.

Owns which of griffe's findings count. It reads sources and imports nothing, so it sees calls, and the record names.
"""

import io
import re
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import griffe

ROOTS = ("proto", "server", "client")
KINDS = (
    *(griffe.BreakageKind.OBJECT_REMOVED, griffe.BreakageKind.OBJECT_CHANGED_KIND),
    *(griffe.BreakageKind.PARAMETER_REMOVED, griffe.BreakageKind.PARAMETER_MOVED),
    *(griffe.BreakageKind.PARAMETER_CHANGED_KIND, griffe.BreakageKind.PARAMETER_CHANGED_REQUIRED),
    *(griffe.BreakageKind.PARAMETER_ADDED_REQUIRED, griffe.BreakageKind.CLASS_REMOVED_BASE),
)
"""What makes a call or an import fail. A new default or another type of what is returned may be an improvement."""

_COLOURS = re.compile(r"\x1b\[\d+m")


def last_tag(repository: Path) -> str | None:
    """The newest release's tag among the ancestors of HEAD."""
    command = ["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]
    found = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    return found.stdout.strip() or None


def extracted(repository: Path, tag: str, folder: Path) -> Path:
    """Writes the sources of a tag into a folder."""
    command = ["git", "archive", tag, *ROOTS]
    archive = subprocess.run(command, cwd=repository, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def loaded(folder: Path, package: str = "packhorse") -> Any:
    paths = [folder / root for root in ROOTS if (folder / root).is_dir()] or [folder]
    found: Any = griffe.load(package, search_paths=paths, allow_inspection=False, resolve_aliases=True)
    return found


def breaking(old: Any, new: Any, public: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Yields what the new tree breaks, as a record names it, and griffe's sentence for it.

    Args:
        old: the tree of the last release.
        new: this one.
        public: package → names, of the last release.
    """
    for package, names in public.items():
        for name in names:
            path = f"{package}.{name}"
            before = at(old, path)
            if before is None:
                continue  # made while the package is imported; the record has it
            after = at(new, path)
            if after is None:
                yield path, f"{path}: it is gone"
                continue
            # griffe compares members: each name is compared as the one member of a module
            for found in griffe.find_breaking_changes(holder(before, name), holder(after, name)):
                if found.kind in KINDS:
                    said = _COLOURS.sub("", found.explain(griffe.ExplanationStyle.ONE_LINE))
                    yield recorded_name(path, before, found), f"{path}: {said}"


def recorded_name(path: str, before: Any, found: Any) -> str:
    """The member or parameter of a public name that a finding is about."""
    member = path + found.obj.path.removeprefix(before.path)
    changed = found.old_value if found.old_value is not None else found.new_value
    return f"{member}({changed.name})" if isinstance(changed, griffe.Parameter) else member


def at(tree: Any, path: str) -> Any:
    """What a dotted path holds in the end, or None."""
    try:
        found = tree[path.partition(".")[2]]
        return found.final_target if found.is_alias else found
    except (KeyError, griffe.AliasResolutionError, griffe.CyclicAliasError):
        return None


def holder(found: Any, name: str) -> Any:
    module = griffe.Module("holder", filepath=Path("holder.py"))
    module.members[name] = found
    return module
