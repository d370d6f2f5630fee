"""The facts that the status page and HTML reports show of a dataset: some known at once, others costly.

Owns the choice of facts, as JSON values. Leaves the costly figures to `report` and `packers`, computing them in the
background to `figures`, and the page to `page_files`.
"""

from typing import Any

import numpy as np

from packhorse.analysis.counts import lengths_before, options_of
from packhorse.analysis.histogram_input import HistogramInput
from packhorse.analysis.packers import compare_packers
from packhorse.analysis.report import dataset_report
from packhorse.dataset import MixtureDataset, PreparedDataset
from packhorse.topology import Topology

_LENGTH_BARS, _FULLNESS_BARS = 60, 40
"""Bars of the two histograms."""
_WORLD_SIZE = 8
"""Ranks of the run whose waiting is shown; a quarter and four times as many ranks are shown too."""
_ACCUMULATION = 8
"""Steps in an optimizer step of that run. With a single step, no balance could change anything."""
_TIME_LIMIT_SECONDS = 2.0
"""Time limit of each packer that improves its plan step by step."""


def dataset_facts(dataset: PreparedDataset | MixtureDataset) -> dict[str, Any]:
    """Returns the facts of a dataset or mixture that are known at once, as JSON values.

    Example:
        >>> from packhorse.dataset import open_prepared
        >>> facts = dataset_facts(open_prepared("datasets/corpus"))
        >>> facts["num_bins"], facts["efficiency"], facts["gap"]
        (2, 1.0, 0.0)
    """
    manifest = dataset.manifest
    prepared = dataset if isinstance(dataset, PreparedDataset) else None
    return {
        "name": dataset.name,
        "components": [each.name for each in dataset.datasets] if isinstance(dataset, MixtureDataset) else [],
        "digest": manifest.digest,
        "algorithm": manifest.algorithm,
        "max_seq_len": manifest.max_seq_len,
        "num_sequences": manifest.num_sequences,
        "num_bins": manifest.num_bins,
        "total_tokens": manifest.total_tokens,
        "efficiency": manifest.efficiency,
        "lower_bound": manifest.lower_bound,
        "gap": manifest.num_bins / manifest.lower_bound - 1 if manifest.lower_bound else None,
        "lengths": None if prepared is None else _lengths(prepared),
        "fullness": None if prepared is None else _fullness(prepared),
    }


def costly_facts(dataset: PreparedDataset) -> dict[str, Any]:
    """Returns the facts that take seconds, such as other context lengths, packers, ways without packing, and waiting.

    Waiting is that at the dataset's own context length. Packers know tokens only. So "packers" is empty for a dataset
    whose resources have caps.

    Example:
        >>> from packhorse.dataset import open_prepared
        >>> costly_facts(open_prepared("datasets/corpus"))["padding_avoided_tokens"]
        16
    """
    rule = dataset.manifest.options.context
    # If ranks share bins, `dataset_report` takes only a multiple of the ranks of a bin.
    ranks = _WORLD_SIZE * (1 if rule is None else rule.max_context_parallel)
    report = dataset_report(dataset, run=Topology(world_size=ranks, accumulation=_ACCUMULATION))
    packers: list[dict[str, Any]] = []
    if len(dataset.manifest.capacities) == 1:  # of tokens; each resource with a cap has another
        source = HistogramInput(name=dataset.name, counts=lengths_before(dataset), options=options_of(dataset))
        compared = compare_packers(source, options_of(dataset), time_limit_seconds=_TIME_LIMIT_SECONDS)
        packers = compared.facts()["packers"]
    facts = report.facts()
    padded = next(way for way in report.without_packing if way.way == "padded")
    own = dataset.manifest.max_seq_len
    return {
        "version": next((each["version"] for each in facts["versions"] if each["is_current"]), None),
        "padding_avoided_tokens": padded.computed_tokens - dataset.manifest.total_capacity,
        "context_lengths": facts["context_lengths"],
        "packers": packers,
        "without_packing": facts["without_packing"],
        "waiting": [row | {"accumulation": _ACCUMULATION} for row in facts["waiting"] if row["max_seq_len"] == own],
    }


def _lengths(dataset: PreparedDataset) -> dict[str, list[float]]:
    """Returns the histogram of rooms: "edges" in tokens, and "counts" of sequences or groups between them."""
    plan = dataset.plan
    counts, edges = np.histogram(plan.rooms, bins=_LENGTH_BARS, weights=plan.counts)
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def _fullness(dataset: PreparedDataset) -> dict[str, list[float]]:
    """Returns the histogram of bins by fullness: "edges" in [0, 1], and "counts" of bins between them."""
    sums = np.array([sum(template) for template in dataset.templates])
    share = sums / dataset.manifest.max_seq_len
    counts, edges = np.histogram(share, _FULLNESS_BARS, (0.0, 1.0), weights=list(dataset.templates.values()))
    return {"edges": edges.tolist(), "counts": counts.tolist()}
