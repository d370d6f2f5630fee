"""Planning: how fast, how many templates, how near to the bound; beside seqpack's batched histogram packer."""

import seqpack
from harness import Row, Sample, interleaved, timed
from workload import MAX_SEQ_LEN, Workspace, histogram, in_words

from packhorse.packing import PackingPlan, pack_histogram

NOTE = (
    "planning: `pack_histogram` (plan and lower bound), best-fit but where auto stands, and "
    "`seqpack.pack_length_histogram_batched`, same counts."
)
PEER = "seqpack batched"


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    sizes = workspace.sizes
    counts = histogram(sizes.planned)
    size = f"{in_words(sizes.planned)} sequences, {len(counts):,} lengths"
    best_fit, auto = interleaved(
        3 * sizes.repeats, lambda: timed(lambda: _plan(counts)), lambda: timed(lambda: _auto(counts))
    )
    seconds, plan, auto_plan = Sample(best_fit, "s"), _plan(counts), _auto(counts)
    per_length = len(plan.templates) / len(counts)
    rows = [
        Row(what="plan, best-fit", size=size, ours=str(seconds), target="< 0.1 s", reached=seconds.median < 0.1),
        Row(
            what="templates per distinct length",
            size=size,
            ours=f"{per_length:.2f}",
            target="≤ 3",
            reached=per_length <= 3,
        ),
        Row(what="gap to the lower bound", size=size, ours=f"{plan.gap:.1e}"),
        Row(what="plan, auto", size=size, ours=f"{Sample(auto, 's')}; gap {auto_plan.gap:.1e}"),
    ]
    for num_sequences in (sizes.small, sizes.medium):
        rows += _beside(num_sequences, 3 if num_sequences == sizes.small else 1)
    return rows


def _beside(num_sequences: int, repeats: int) -> list[Row]:
    counts = histogram(num_sequences)
    ours, theirs = interleaved(
        repeats,
        lambda: timed(lambda: _plan(counts)),
        lambda: timed(lambda: seqpack.pack_length_histogram_batched(counts, MAX_SEQ_LEN)),
    )
    ours_sample, their_sample = Sample(ours, "s"), Sample(theirs, "s")
    plan = _plan(counts)
    their_bins = sum(seqpack.pack_length_histogram_batched(counts, MAX_SEQ_LEN).values())
    size = f"{in_words(num_sequences)} sequences"
    return [
        Row(
            what="plan, best-fit",
            size=size,
            ours=str(ours_sample),
            peer=f"{their_sample}, {PEER}",
            ratio=their_sample.median / ours_sample.median,
        ),
        Row(
            what="bins of the plan",
            size=size,
            ours=f"{plan.num_bins:,} (bound {plan.lower_bound:,})",
            peer=f"{their_bins:,}, {PEER}",
            ratio=their_bins / plan.num_bins,
        ),
    ]


def _plan(counts: dict[int, int]) -> PackingPlan:
    return pack_histogram(counts, MAX_SEQ_LEN, algorithm="best-fit")


def _auto(counts: dict[int, int]) -> PackingPlan:
    return pack_histogram(counts, MAX_SEQ_LEN)
