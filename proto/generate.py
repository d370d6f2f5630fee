"""Regenerates the committed stubs in packhorse/v1 from packing.proto; with --check only compares.

Owns the one way in which stubs are made; `make proto` writes them, `make check` runs it with --check.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
SOURCE = "packhorse/v1/packing.proto"
STUBS = ("packing_pb2.py", "packing_pb2.pyi", "packing_pb2_grpc.py")


def generate(output: Path) -> None:
    """Writes the stubs of SOURCE below `output`."""
    arguments = ["protoc", f"-I{ROOT}", f"--python_out={output}", f"--pyi_out={output}", f"--grpc_python_out={output}"]
    if protoc.main([*arguments, SOURCE]) != 0:
        raise SystemExit(f"protoc could not compile {SOURCE}; its messages stand above")


def main() -> None:
    """Writes the stubs, or compares them with the committed ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when a stub is stale")
    if not parser.parse_args().check:
        generate(ROOT)
        return
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        package = Path(SOURCE).parent
        made, committed = Path(folder) / package, ROOT / package
        stale = [stub for stub in STUBS if (made / stub).read_text() != (committed / stub).read_text()]
    if stale:
        sys.exit(f"stale stubs: {', '.join(stale)}; run `make proto` and commit what it writes")


if __name__ == "__main__":
    main()
