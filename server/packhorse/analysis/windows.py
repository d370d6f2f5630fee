"""How well locality windows shuffle a dataset, and what they read from its disk.

Owns which numbers of windows are compared; leaves measuring to `packhorse.epoch.shuffle_quality`.
"""

from packhorse.dataset import PreparedDataset
from packhorse.epoch import ShuffleQuality, shuffle_quality

_NUM_WINDOWS = (1, 8, 32, 128, 512)
_LEAST_BINS = 16
"""Windows of fewer bins are not compared."""


def quality_rows(dataset: PreparedDataset) -> list[ShuffleQuality]:
    """Measures a dataset's first epochs under some numbers of windows; groups count as one sequence.

    Args:
        dataset: what was prepared.
    """
    return [
        shuffle_quality(dataset.plan, dataset.pool, num_windows, first_tokens=dataset.first_tokens)
        for num_windows in _NUM_WINDOWS
        if num_windows == 1 or dataset.plan.num_bins >= _LEAST_BINS * num_windows
    ]
