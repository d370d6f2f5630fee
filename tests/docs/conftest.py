"""Puts `pages` and `run_pages` where the tests of this folder find them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
