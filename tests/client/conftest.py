"""What tests of batches share."""

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
