"""How a run is shaped and how servers are tried again: the options that clients, datasets and loaders share.

Re-exports what `packhorse.topology` and `packhorse.formats` own, so that a trainer imports one package.
"""

from packhorse.formats.asking import RetryPolicy
from packhorse.topology import Balance, BatchPhase, BatchSchedule, RemainderPolicy, Skips, StreamMode, Topology

__all__ = [
    "Balance",
    "BatchPhase",
    "BatchSchedule",
    "RemainderPolicy",
    "RetryPolicy",
    "Skips",
    "StreamMode",
    "Topology",
]
