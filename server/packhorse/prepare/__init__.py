"""Preparing: lengths and ids become a prepared folder, which `packhorse serve` serves.

Only re-exports. Start with `prepare`.
"""

from packhorse.prepare.loading import load_prepared
from packhorse.prepare.pipeline import Layout, prepare

__all__ = ["Layout", "load_prepared", "prepare"]
