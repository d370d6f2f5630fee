"""The packing quality of a prepared folder's plan.

Owns what a folder's groups and resources change in `PackingStats`, which is in `packhorse.packing`.
"""

from collections.abc import Mapping
from dataclasses import replace

from packhorse.dataset.manifest import Manifest
from packhorse.packing import PackingStats, Template


def stats_of(manifest: Manifest, templates: Mapping[Template, int]) -> PackingStats:
    """Returns the packing quality of a prepared folder's plan, with sequences counted one by one, not by group.

    Example:
        >>> from packhorse.dataset import open_prepared, stats_of
        >>> dataset = open_prepared("datasets/corpus")
        >>> stats_of(dataset.manifest, dataset.templates).efficiency
        1.0
    """
    stats = PackingStats.from_templates(
        templates,
        manifest.max_seq_len,
        max_sequences_per_bin=manifest.options.max_sequences_per_bin,
        proven_bound=manifest.lower_bound,
    )
    if manifest.resources:  # then templates have rooms that are rounded up
        stats = stats.with_tokens(manifest.total_tokens, manifest.lower_bound)
    return replace(stats, n_sequences=manifest.num_sequences)  # with groups, templates count those
