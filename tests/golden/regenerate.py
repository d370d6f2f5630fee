"""Writes the golden vectors: values that must never change, or two machines with equal digests would differ.

Owns what is frozen; tests/epoch/test_golden.py compares `vectors()` with the files and never writes them. Run this by
hand (`python tests/golden/regenerate.py`), only together with a new version in the key derivation, and say so in the
changelog: every running job's bins change.
"""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from packhorse.dataset import MixtureDataset, MixtureFile, Takedown, TakedownFile, open_prepared
from packhorse.epoch import (
    Assignment,
    Component,
    EpochView,
    GroupedSource,
    Groups,
    JoinedSource,
    Mixture,
    Permutation,
    PlanIndex,
    SkipSource,
    Source,
    Stage,
    WindowedView,
    derive_key,
    independent_seed,
)
from packhorse.packing import canonical_templates, pack_histogram, seed_from_components
from packhorse.prepare import Execution, prepare
from packhorse.topology import RemainderPolicy, RoomRule, Skips, Topology

FOLDER = Path(__file__).parent
LARGEST = 2**64 - 1
COUNTS = {1: 9, 2: 7, 3: 5, 5: 11, 8: 13, 13: 20, 21: 17, 34: 6, 55: 4, 64: 2}
MAX_SEQ_LEN = 64
MIXTURE_FILES = (
    "[[stages]]\nweights = {web = 2, code = 1}",
    "epoch_bins = 60\n[[stages]]\nuntil_bins = 80\nweights = {web = 70, code = 30}\n"
    "[[stages]]\nuntil_tokens = 1500\nby = 'tokens'\nweights = {code = 0.3, web = 0.7}\n"
    "[[stages]]\nweights = {code = 1}\n[components.web]\nshuffle = 'windowed(3)'",
    "when_out = 'stop'\n[[stages]]\nweights = {code = 1, web = 3}",
    "when_out = 'reweigh'\n[[stages]]\nweights = {code = 2, web = 3}",
    "max_seq_len = 32\nepoch_bins = 40\n[[stages]]\nuntil_bins = 50\nweights = {short = 1}\n"
    "[[stages]]\nby = 'tokens'\nweights = {web = 2, short = 1}",
    "max_seq_len = 16\nbins_per_step = 4\ndraw = 'steps'\nepoch_bins = 40\n[[stages]]\nweights = {web = 2, short = 1}",
)
TAKEDOWN_FILES = (
    "[[redact]]\ncomponent = 'web'\nids = [3, 1, 3]\nreason = 'private'",
    "[[redact]]\ncomponent = 'web'\nids = [1, 3]\n[[redact]]\ncomponent = 'code'\nids = [-5, 9000000000]\ntoken = 7\n"
    f"seed = {LARGEST}\nfrom_position = 900\n[[skip]]\npositions = '5:9, 1:2'\nepoch = 1\n"
    f"[[skip]]\npositions = '30:40'\nseed = {LARGEST}",
)
SIZES = (1, 2, 3, 5, 15, 16, 17, 100, 4095, 4096, 4097, 65537, 1_000_003, 2**32 + 1, 3_000_000_000, 2**62)


def keys() -> list[dict[str, Any]]:
    """`derive_key` at corners of its domain."""
    purposes = ("bins", "pool")
    numbers = (0, 1, 255, 256, 2**32, LARGEST)
    return [
        {"seed": seed, "epoch": epoch, "purpose": purpose, "key": derive_key(seed, epoch, purpose)}
        for seed in numbers
        for epoch in numbers
        for purpose in purposes
    ]


def permutations() -> list[dict[str, Any]]:
    """Small permutations whole, larger ones at eleven places."""
    rows = []
    for size in SIZES:
        values = list(range(size)) if size <= 17 else sorted({size * i // 10 for i in range(10)} | {size - 1})
        for key, tweak in ((0, 0), (0x0123456789ABCDEF, 512), (LARGEST, LARGEST)):
            images = Permutation(size, key, tweak).forward(values).tolist()
            rows.append({"size": size, "key": key, "tweak": tweak, "values": values, "images": images})
    return rows


def seeds() -> list[dict[str, Any]]:
    """`seed_from_components` and the seeds of independent streams."""
    components = ([], [0], [1, 2], [12], [2, 1], [-1, 0], [LARGEST, 3, 7], [1, 2, 3, 4])
    rows: list[dict[str, Any]] = [{"components": c, "seed": seed_from_components(*c)} for c in components]
    rows += [{"independent": [5, r, w], "seed": independent_seed(5, r, w)} for r in range(2) for w in range(2)]
    return rows


def plans() -> list[dict[str, Any]]:
    """A small plan with and without a limit of sequences, in canonical order."""
    rows = []
    for limit in (None, 3):
        plan = pack_histogram(COUNTS, MAX_SEQ_LEN, algorithm="best-fit", max_sequences_per_bin=limit)
        templates = [[list(template), multiplicity] for template, multiplicity in canonical_templates(plan.templates)]
        rows.append({"limit": limit, "lower_bound": plan.lower_bound, "templates": templates})
    return rows


def epochs() -> list[dict[str, Any]]:
    """Every bin of two epochs of the plan, and a last step under SPREAD; ids are 1000, 1001, … by ascending length."""
    templates = pack_histogram(COUNTS, MAX_SEQ_LEN, algorithm="best-fit").templates
    index = PlanIndex.build(templates, COUNTS, MAX_SEQ_LEN)
    pool = np.arange(1000, 1000 + index.num_sequences)
    rows = []
    for seed, epoch in ((0, 0), (LARGEST, 1)):
        view = EpochView(index, pool, seed=seed, epoch=epoch)
        bins = view.bins(np.arange(view.num_bins))
        ids = [part.tolist() for part in np.split(bins.ids, bins.bin_ends[:-1])]
        per_rank = view.num_bins // 4
        topology = Topology(world_size=5, batch_size=per_rank, start_position=3, remainder=RemainderPolicy.SPREAD)
        stream = Assignment(view, topology)
        spread = [stream.bins(range(stream.num_steps - 1, stream.num_steps), rank) for rank in range(5)]
        rows.append(
            {
                "seed": seed,
                "epoch": epoch,
                "bins": ids,
                "spread": [
                    {"ids": b.ids.tolist(), "bin_ends": b.bin_ends.tolist(), "positions": b.positions.tolist()}
                    for b in spread
                ],
            }
        )
    return rows


def assignments() -> list[dict[str, Any]]:
    """Positions and ids that every rank gets under both balances, of the plan's epoch with a range left out."""
    templates = pack_histogram(COUNTS, MAX_SEQ_LEN, algorithm="best-fit").templates
    index = PlanIndex.build(templates, COUNTS, MAX_SEQ_LEN)
    view = EpochView(index, np.arange(1000, 1000 + index.num_sequences), seed=7, epoch=2)
    source = SkipSource(view, Skips.of([(4, 9)]))
    rows = []
    for balance in ("micro-step", "optimizer-step"):
        for remainder in RemainderPolicy:
            topology = Topology(
                world_size=3, batch_size=2, accumulation=2, balance=balance, cost_linear=100, remainder=remainder
            )
            stream = Assignment(source, topology, seed=7, epoch=2)
            ranks = [stream.bins(range(stream.num_steps), rank) for rank in range(3)]
            rows.append(
                {
                    "balance": balance,
                    "remainder": remainder,
                    "positions": [bins.positions.tolist() for bins in ranks],
                    "ids": [bins.ids.tolist() for bins in ranks],
                }
            )
    return rows


def schedules() -> list[dict[str, Any]]:
    """Positions that every rank gets where the batch size changes, in two epochs, balanced and in order."""
    templates = pack_histogram(COUNTS, MAX_SEQ_LEN, algorithm="best-fit").templates
    index = PlanIndex.build(templates, COUNTS, MAX_SEQ_LEN)
    pool = np.arange(1000, 1000 + index.num_sequences)
    rows = []
    for epoch, start_position, balance in ((0, 0, "none"), (0, 5, "micro-step"), (1, 0, "optimizer-step")):
        view = EpochView(index, pool, seed=7, epoch=epoch)
        shape = Topology(
            world_size=2,
            accumulation=2,
            batch_schedule="0:4 1K:8 50:12",
            start_position=start_position,
            balance=balance,
        )
        topology = shape.of_epoch(epoch, num_bins=view.num_bins, max_seq_len=MAX_SEQ_LEN)
        stream = Assignment(view, topology, seed=7, epoch=epoch)
        rows.append(
            {
                "epoch": epoch,
                "start_position": start_position,
                "balance": balance,
                "resume_at": [topology.position_after(step, view.num_bins) for step in range(stream.num_steps)],
                "positions": [stream.bins(range(stream.num_steps), rank).positions.tolist() for rank in range(2)],
            }
        )
    return rows


def sources() -> list[dict[str, Any]]:
    """Every bin of each kind of source made of the plan's epoch, in one whose plan is over groups its members."""
    templates = pack_histogram(COUNTS, MAX_SEQ_LEN, algorithm="best-fit").templates
    index = PlanIndex.build(templates, COUNTS, MAX_SEQ_LEN)
    pool = np.arange(1000, 1000 + index.num_sequences)
    made: dict[str, Source] = {
        f"{num_windows} windows, seed {seed}, epoch {epoch}": WindowedView(
            index, pool, seed=seed, epoch=epoch, num_windows=num_windows
        )
        for num_windows, seed, epoch in ((2, 0, 0), (5, LARGEST, 1), (64, 7, 2))
    }
    parts = [
        Component.of(name, lambda epoch, seed=seed: EpochView(index, pool, seed=seed, epoch=epoch))
        for seed, name in enumerate(("web", "code", "chat"))
    ]
    stages = [
        Stage({"web": 70, "code": 20, "chat": 10}, until=40),
        Stage({"web": "0.3333333", "code": "1/1009", "chat": 0.5}, until=130),
        Stage({"code": 1}),
    ]
    repeating = Mixture(parts, stages, seed=5, num_bins=60)
    stopping = Mixture(parts, [Stage({"web": 2, "chat": 1})], seed=5, when_out="stop")
    reweighing = Mixture(
        [parts[0], replace(parts[1], most_epochs=2)],
        [Stage({"web": 3, "code": 2}, until=50), Stage({"web": 1, "code": 1})],
        seed=5,
        when_out="reweigh",
    )
    for mixture, epochs in ((repeating, (0, 1, 2)), (stopping, (5,)), (reweighing, (0, 3))):
        made |= {f"mixture {mixture.chain[-1][1]}, epoch {epoch}": mixture.epoch(epoch) for epoch in epochs}
    made["mixture of windows with skips"] = Mixture(
        [
            Component.of(
                "skips",
                lambda epoch: SkipSource(
                    WindowedView(index, pool, seed=1, epoch=epoch, num_windows=3), Skips.of([(2, 6)])
                ),
            ),
            parts[0],
        ],
        [Stage({"skips": 1, "web": 2})],
        seed=LARGEST,
    ).epoch(1)
    made["groups"] = grouped = GroupedSource(EpochView(index, pool - 1000, seed=7, epoch=2), _groups(index))
    with_groups = [Component.of("pairs", lambda epoch: grouped), parts[0]]
    made["joined by 3"] = JoinedSource(EpochView(index, pool, seed=7, epoch=2), rows_per_bin=3)
    made["mixture with groups"] = Mixture(with_groups, [Stage({"pairs": 1, "web": 1})], seed=7, num_bins=30).epoch(0)
    rows = []
    for name, source in made.items():
        bins = source.bins(np.arange(source.num_bins))
        ids = [part.tolist() for part in np.split(bins.ids, bins.bin_ends[:-1])]
        row = {"source": name, "bins": ids}
        for beside in ("component_ids", "group_ids", "rows"):
            if (values := getattr(bins, beside)) is not None:
                row[beside] = values.tolist()
        rows.append(row)
    return rows


def files() -> list[dict[str, Any]]:
    """What the files of mixtures and takedowns stand for: stages, digests, components, ids and positions."""
    with TemporaryDirectory() as folder:
        datasets = {}
        for name, lengths, max_seq_len in (
            ("web", np.arange(200) % 13 + 1, 16),
            ("code", np.arange(90) % 7 + 1, 16),
            ("short", np.arange(150) % 8 + 1, 8),
        ):
            lengths_file, output = Path(folder, f"{name}.npy"), Path(folder, name)
            np.save(lengths_file, lengths)
            alone = Execution(workers=1, progress=False)
            prepare(lengths_file, max_seq_len=max_seq_len, output=output, execution=alone)
            datasets[name] = open_prepared(Path(folder, name))
        rows: list[dict[str, Any]] = []
        for text in MIXTURE_FILES:
            file = MixtureFile.parse(text, "golden.mixture.toml")
            mixture = MixtureDataset("golden", file, [datasets[name] for name in file.names])
            bins = mixture.epoch(1, seed=LARGEST).bins(range(mixture.num_bins))
            row = {
                "file": text,
                "digest": mixture.manifest.digest,
                "chain": [list(stage) for stage in mixture.chain],
                "component_ids": _numbers(bins.component_ids),
                "ids": bins.ids.tolist(),
            }
            rows.append(row if bins.rows is None else row | {"rows": bins.rows.tolist()})
    for text in TAKEDOWN_FILES:
        takedown = TakedownFile.parse(text, "golden.takedown.toml")
        rows.append(
            {
                "file": text,
                "chain": list(takedown.chain),
                "digest": Takedown.of_mixture(takedown, {"web": takedown_of_web(), "code": TakedownFile()}).digest,
                "skips": [str(takedown.skips_of(epoch, seed)) for epoch in (0, 1) for seed in (0, LARGEST)],
            }
        )
    return rows


def takedown_of_web() -> TakedownFile:
    """A component's own file."""
    return TakedownFile.parse("[[redact]]\nids = [1, 2]", "web.takedown.toml")


def _numbers(array: Any) -> list[int]:
    return [int(number) for number in array]


def _groups(index: PlanIndex) -> Groups:
    """Groups of one or two sequences whose lengths come to those of the plan, by ascending length."""
    lengths = np.repeat(index.lengths, index.counts).tolist()
    members = [part for length in lengths for part in ([1, length - 1] if length % 2 and length > 1 else [length])]
    ends = np.cumsum([2 if length % 2 and length > 1 else 1 for length in lengths])
    return Groups(
        table=np.stack((500 + np.arange(len(lengths))[::-1], ends), axis=1),
        members=np.stack((9000 - np.arange(len(members)), members), axis=1),
        rooms=RoomRule(MAX_SEQ_LEN),
        max_sequences_per_bin=2 * index.max_sequences_per_bin,
        order=np.arange(len(members))[::-1].copy(),
    )


def vectors() -> dict[str, list[dict[str, Any]]]:
    """Every golden file by its name without the suffix."""
    return {
        "keys": keys(),
        "permutations": permutations(),
        "seeds": seeds(),
        "plans": plans(),
        "schedules": schedules(),
        "epochs": epochs(),
        "files": files(),
        "assignments": assignments(),
        "sources": sources(),
    }


def main() -> None:
    """Writes every file anew, one vector a line."""
    for name, rows in vectors().items():
        lines = ",\n".join(json.dumps(row) for row in rows)
        (FOLDER / f"{name}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
