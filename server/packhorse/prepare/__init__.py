"""Preparing: lengths and ids become a prepared folder, which `packhorse serve` serves.

Only re-exports. Start with `prepare`.
"""

from packhorse.dataset import PlanOptions, load_prepared
from packhorse.jobs import Execution
from packhorse.prepare.dry_run import DryRun, dry_run
from packhorse.prepare.groups.grouping import Grouping
from packhorse.prepare.input import READERS, InputColumns, OnBadRow, Resource
from packhorse.prepare.job import Layout
from packhorse.prepare.options import check_plan
from packhorse.prepare.pipeline import prepare, prepare_with_tokens
from packhorse.prepare.shard import shard

__all__ = [
    "READERS",
    "DryRun",
    "Execution",
    "Grouping",
    "InputColumns",
    "Layout",
    "OnBadRow",
    "PlanOptions",
    "Resource",
    "check_plan",
    "dry_run",
    "load_prepared",
    "prepare",
    "prepare_with_tokens",
    "shard",
]
