"""Puts `names`, `record` and the reference's writers where the tests of this folder find them."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "docs")]
