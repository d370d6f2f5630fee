"""Arithmetic that server and client share: which rank takes which step, and how many tokens a length takes up.

Plain Python without dependencies, so that server, client and command line import the same code. `Topology` is the place
to start.
"""

from packhorse.topology.checks import checked_integer
from packhorse.topology.choices import Balance, RemainderPolicy, StreamMode, as_choice
from packhorse.topology.context import DEFAULT_COST_CAP_PERCENT, ContextPart, ContextRule
from packhorse.topology.rooms import LEAST_EXTRA_TOKENS, RoomRule
from packhorse.topology.schedule import BatchPhase, BatchSchedule
from packhorse.topology.skips import Skips
from packhorse.topology.topology import ADDED, DEFAULT_COST_LINEAR, Stretch, Topology, cost_of

__all__ = [
    "ADDED",
    "DEFAULT_COST_CAP_PERCENT",
    "DEFAULT_COST_LINEAR",
    "LEAST_EXTRA_TOKENS",
    "Balance",
    "BatchPhase",
    "BatchSchedule",
    "ContextPart",
    "ContextRule",
    "RemainderPolicy",
    "RoomRule",
    "Skips",
    "StreamMode",
    "Stretch",
    "Topology",
    "as_choice",
    "checked_integer",
    "cost_of",
]
