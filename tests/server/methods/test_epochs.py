"""What is kept of epochs: the last ones, within a bound, and nothing of what the catalog let go of."""

import gc
import weakref
from dataclasses import dataclass, field

from packhorse.server.methods.epochs import MOST_BYTES, Epochs


@dataclass(eq=False)
class Epoch:
    """Takes a quarter of what there is room for."""

    num_bytes: int = MOST_BYTES // 4


@dataclass(eq=False)
class Dataset:
    """Counts the epochs that it makes."""

    made: list[int] = field(default_factory=list)

    def epoch(self, number: int, seed: int) -> Epoch:
        self.made.append(number)
        return Epoch()


def test_the_epochs_used_last_are_kept_within_the_bound():
    epochs, dataset = Epochs(), Dataset()
    for number in (0, 1, 2):
        epochs.whole(dataset, 7, number)
    assert epochs.whole(dataset, 7, 0) is epochs.whole(dataset, 7, 0)
    epochs.whole(dataset, 7, 3)  # and 1, which was used longest ago, goes
    for number in (0, 2, 3):
        epochs.whole(dataset, 7, number)
    assert dataset.made == [0, 1, 2, 3]
    epochs.whole(dataset, 7, 1)
    assert dataset.made == [0, 1, 2, 3, 1]


def test_what_a_dataset_leaves_behind_goes_and_makes_room():
    epochs, gone, there = Epochs(), Dataset(), Dataset()
    left = [weakref.ref(epochs.whole(gone, 7, number)) for number in range(3)]
    del gone
    gc.collect()
    for number in range(3):
        epochs.whole(there, 7, number)
    gc.collect()
    assert [each() for each in left] == [None] * 3
    for number in range(3):
        epochs.whole(there, 7, number)
    assert there.made == [0, 1, 2]
