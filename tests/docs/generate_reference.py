"""Writes the reference pages in `client/guides` from the code; with --check it only compares.

Owns which pages there are. Leaves what stands on each to its file in `reference`. All of it comes from the command
line's help, from signatures and docstrings, from the metrics' registry and from the protocol; what has no description
is an error, which names it.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from pages import GUIDES
from reference.commands import commands_page
from reference.environment import environment_page
from reference.errors import errors_page
from reference.metrics import metrics_page
from reference.packages import client_page, library_page

WRITERS = {
    "reference-commands.md": commands_page,
    "reference-client.md": client_page,
    "reference-library.md": library_page,
    "reference-metrics.md": metrics_page,
    "reference-environment.md": environment_page,
    "reference-errors.md": errors_page,
}


def main() -> None:
    """Writes the pages, or compares them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when a page is stale")
    check = parser.parse_args().check
    stale = []
    for name, write in WRITERS.items():
        text = write().rstrip() + "\n"
        page = GUIDES / name
        if not page.exists() or page.read_text() != text:
            stale.append(name)
            if not check:
                page.write_text(text)
    if check and stale:
        sys.exit(f"stale: {', '.join(stale)}; run `make reference` and commit what it writes")


if __name__ == "__main__":
    main()
