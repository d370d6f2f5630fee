"""Preparing: lengths and ids become a prepared folder, which `packhorse serve` serves.

Only re-exports. Start with `prepare`.
"""

from packhorse.prepare.dry_run import DryRun, dry_run
from packhorse.prepare.input import READERS
from packhorse.prepare.job import Layout, OnBadRow
from packhorse.prepare.loading import load_prepared
from packhorse.prepare.pipeline import prepare
from packhorse.prepare.shard import shard

__all__ = ["READERS", "DryRun", "Layout", "OnBadRow", "dry_run", "load_prepared", "prepare", "shard"]
