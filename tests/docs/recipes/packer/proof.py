"""Prepare takes the packer by name; its plans use each sequence once, within the limits and never below the bound."""

import sys
from pathlib import Path

import numpy as np

from packhorse.dataset import PlanOptions
from packhorse.packing import counts_of_templates, lower_bound, pack_histogram
from packhorse.prepare import prepare

random = np.random.default_rng(0)
for limit in (None, 1, 2, 5):
    for _ in range(50):
        counts = {int(length): int(random.integers(1, 9)) for length in random.integers(1, 17, random.integers(1, 9))}
        plan = pack_histogram(counts, 16, algorithm="pairing", max_sequences_per_bin=limit)
        assert counts_of_templates(plan.templates) == counts
        assert all(sum(template) <= 16 and len(template) <= min(limit or 2, 2) for template in plan.templates)
        assert plan.num_bins >= lower_bound(counts, 16)
manifest = prepare(
    lengths=np.array([5, 5, 3, 3, 8]),
    output=Path(sys.argv[1], "pairs"),
    plan=PlanOptions(max_seq_len=8, algorithm="pairing"),
)
assert (manifest.algorithm, manifest.num_bins) == ("pairing", 3)
