"""What tests of the shelf share: batches of the shared server."""

from tests.batches import (  # fixtures
    assert_same_batches,
    load,
    make_dataset,
    module_alone,
    sequences_of,
    whole,
    workers_are_not_waited_for,
)

__all__ = [
    "assert_same_batches",
    "load",
    "make_dataset",
    "module_alone",
    "sequences_of",
    "whole",
    "workers_are_not_waited_for",
]
