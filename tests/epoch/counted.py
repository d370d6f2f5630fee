"""Components whose bins hold one sequence each, so that what a mixture deals can be counted."""

import numpy as np

from packhorse.epoch import Component, EpochView, PlanIndex


def counting(name, num_bins, num_tokens=None):
    """A component of bins with one sequence each, whose ids are rows."""
    plan = PlanIndex.build({(4,): num_bins}, {4: num_bins}, 4)

    def source_of(epoch):
        return EpochView(plan, np.arange(num_bins), seed=len(name), epoch=epoch)

    return Component.of(name, source_of, num_tokens=num_tokens, digest=f"{name}-{num_bins}")


def dealt(mixture, epoch=0):
    return mixture.epoch(epoch).bins(np.arange(mixture.num_bins)).component_ids


def run_of(mixture, num_epochs):
    parts = [mixture.epoch(e).bins(np.arange(mixture.num_bins)) for e in range(num_epochs)]
    return [pair for bins in parts for pair in zip(bins.component_ids.tolist(), bins.ids.tolist(), strict=True)]
