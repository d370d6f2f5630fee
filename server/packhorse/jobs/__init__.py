"""Long jobs: engines that run their tasks, processors to run them on, progress bars, and holding signals back.

Only re-exports. The package knows nothing of packing, so every package of the server's side may use it.
"""

from packhorse.jobs.control_groups import available_cores, memory_limit
from packhorse.jobs.engines import Engine, InlineEngine, ProcessEngine, open_engine
from packhorse.jobs.execution import AnyEngineKind, EngineKind, Execution
from packhorse.jobs.progress import Advance, Progress, show_progress
from packhorse.jobs.results import results_in_order
from packhorse.jobs.signals import ENDING_SIGNALS, held_signals

__all__ = [
    "ENDING_SIGNALS",
    "Advance",
    "AnyEngineKind",
    "Engine",
    "EngineKind",
    "Execution",
    "InlineEngine",
    "ProcessEngine",
    "Progress",
    "available_cores",
    "held_signals",
    "memory_limit",
    "open_engine",
    "results_in_order",
    "show_progress",
]
