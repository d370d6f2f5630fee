"""Writes `MAP.md`: every module with the first sentence of its docstring, by folder; with --check it only compares."""

import argparse
import ast
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
ROOTS = ("proto", "server", "client")
HEADING = """# Map

Every module, by folder, in its own words: the core first, then the shelf. `make reference` writes this page. How the
folders fit together is in [ARCHITECTURE.md](ARCHITECTURE.md). Whole training scripts are in
[client/examples](client/examples/README.md).
"""
HALVES = {
    "The core": "What serves bins and makes batches. It is complete without the rest.",
    "The shelf": "What uses the core. Any package of it could be taken away.",
}
SHELF = (
    *("analysis", "demo", "export", "losses", "parallel", "pictures", "proof", "reference_packers", "rollouts", "sft"),
    *("tokenize", "trainers", "vision"),
)


def first_sentence(path: Path) -> str:
    """The first line of a module's docstring, which is one sentence."""
    found = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return found.split("\n")[0]


def folders() -> list[Path]:
    roots = (REPOSITORY / root / "packhorse" for root in ROOTS)
    found = {path.parent for root in roots for path in root.rglob("*.py") if path.parent != root / "v1"}
    return sorted(found, key=lambda folder: folder.relative_to(REPOSITORY).parts)


def half_of(folder: Path) -> str:
    (_, _, package, *_) = (*folder.relative_to(REPOSITORY).parts, "")
    return "The shelf" if package in SHELF else "The core"


def text_of_map() -> str:
    """The page."""
    lines = [HEADING]
    for folder, half in sorted(((each, half_of(each)) for each in folders()), key=lambda each: each[1]):
        if f"# {half}\n" not in lines:
            lines += [f"# {half}\n", HALVES[half] + "\n"]
        modules = sorted(path for path in folder.glob("*.py") if path.stem != "__init__")
        name = folder.relative_to(REPOSITORY).as_posix()
        package = folder / "__init__.py"  # which the namespace itself has not
        lines.append(f"## {name}\n" + (f"\n{first_sentence(package)}\n" if package.exists() else ""))
        lines += [f"- [{path.stem}]({name}/{path.name}): {first_sentence(path)}" for path in modules]
        if modules:
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when the page is stale")
    page = REPOSITORY / "MAP.md"
    if parser.parse_args().check:
        if page.read_text(encoding="utf-8") != text_of_map():
            sys.exit("stale: MAP.md; run `make reference` and commit what it writes")
    else:
        page.write_text(text_of_map(), encoding="utf-8")


if __name__ == "__main__":
    main()
