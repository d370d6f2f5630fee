"""The packages of the shelf, as the import rules of `pyproject.toml` name them."""

import tomllib
from pathlib import Path

_PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
_CONTRACTS = tomllib.loads(_PYPROJECT.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
(_CONTRACT,) = (each for each in _CONTRACTS if each["name"] == "The core imports nothing of the shelf")

SHELF = tuple(name.removeprefix("packhorse.") for name in _CONTRACT["forbidden_modules"])
"""Without `packhorse.`, in their order there."""
