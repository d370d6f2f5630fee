"""Mixtures of windows with takedowns: the files that say so, and every bin that is left, as lists."""

import itertools
from dataclasses import dataclass

import numpy as np
from tests.epoch.lists import Mixed

from packhorse.client.streams.blocks import AS_IT_IS, MASKED
from packhorse.epoch import EpochView, WindowedView, derive_key
from packhorse.topology import Skips

NUMBERS = itertools.count()


def windowed(dataset, num_windows, seed, epoch):
    """(ids, lengths) of every bin of a dataset's epoch in locality windows; test_view and test_windows prove it."""
    source = EpochView(dataset.plan, dataset.pool, seed=seed, epoch=epoch)
    if num_windows > 1:
        source = WindowedView(dataset.plan, dataset.pool, seed=seed, epoch=epoch, num_windows=num_windows)
    bins = source.bins(np.arange(source.num_bins))
    parts = (np.split(array, bins.bin_ends[:-1]) for array in (bins.ids, bins.lengths))
    return [(ids.tolist(), lengths.tolist()) for ids, lengths in zip(*parts, strict=True)]


@dataclass(frozen=True)
class Windowed:
    """A component: a prepared dataset in locality windows, as its epochs come in a mixture."""

    dataset: object
    num_windows: int
    seed: int
    num_datasets = 1

    def lists(self, epoch):
        """(dataset, ids, lengths) of every bin."""
        return [(0, *one) for one in windowed(self.dataset, self.num_windows, self.seed, epoch)]


@dataclass(frozen=True, kw_only=True)
class Composition:
    """What files say of a mixture and of what is taken away from it."""

    names: tuple
    num_windows: tuple
    stages: tuple
    """(weights, until) of each stage."""
    num_bins: int
    skipped: tuple = ()
    """(epoch, ranges)"""
    redactions: tuple = ()
    """(component, ids, token)"""
    max_seq_len: int | None = None

    def write(self, root):
        """Returns the mixture's name."""
        name = f"m{next(NUMBERS)}"
        lines = [f"epoch_bins = {self.num_bins}"]
        lines += [] if self.max_seq_len is None else [f"max_seq_len = {self.max_seq_len}"]
        for weights, until in self.stages:
            given_weights = ", ".join(f"{n} = {w}" for n, w in zip(self.names, weights, strict=True))
            lines += ["[[stages]]", f"weights = {{{given_weights}}}"]
            lines += [] if until is None else [f"until_bins = {until}"]
        for component, num in zip(self.names, self.num_windows, strict=True):
            lines += [f"[components.{component}]", f'shuffle = "windowed({num})"']
        (root / f"{name}.mixture.toml").write_text("\n".join(lines))
        self.write_takedown(root, name)
        return name

    def write_takedown(self, root, name):
        lines = []
        for epoch, ranges in self.skipped:
            lines += ["[[skip]]", f'positions = "{Skips.of(ranges)}"', f"epoch = {epoch}"]
        for component, ids, token in self.redactions:
            lines += ["[[redact]]", f'component = "{component}"', f"ids = {list(ids)}"]
            lines += [] if token is None else [f"token = {token}"]
        (root / f"{name}.takedown.toml").write_text("\n".join(lines))

    def left(self, component_of, epoch, seed, also_skipped=()):
        """Every bin that is left, in order.

        Args:
            component_of: function of a component's name, its number of windows and its seed; returns its lists.
            epoch: of the mixture.
            seed: of the run.
            also_skipped: ranges of positions beside those of the files.

        Returns:
            Tuples of the component's number, the bin's ids, what else the component's lists say of each, and what is
            taken away of each.
        """
        parts = tuple(
            component_of(name, num, derive_key(seed, number, "component"))
            for number, (name, num) in enumerate(zip(self.names, self.num_windows, strict=True))
        )
        taken = {(n, i): MASKED if token is None else token for n, ids, token in self.redactions for i in ids}
        ranges = [pair for of_epoch, some in self.skipped if of_epoch == epoch for pair in some]
        skipped = {position for a, b in [*ranges, *also_skipped] for position in range(a, b)}
        whole = Mixed(parts, self.stages, seed, self.num_bins).lists(epoch)
        return [
            (number, ids, others, [taken.get((self.names[number], i), AS_IT_IS) for i in ids])
            for position, (number, ids, others) in enumerate(whole)
            if position not in skipped
        ]
