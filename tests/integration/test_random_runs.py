"""Runs that change course at random: other weights, new components, other ranks, resumes, skips and takedowns.

Whatever happens, every bin comes once and in the order of the mixture as it is at the end, which a list tells bin by
bin: nothing that was trained on before a change is touched by it, and each sequence comes as often as the mixture says.
"""

import numpy as np
import pytest
from tests.epoch.lists import Joined, Mixed
from tests.flat_words import prepare
from tests.server.composed import Windowed

from packhorse.client import Topology, connect
from packhorse.client.streams.blocks import AS_IT_IS, MASKED
from packhorse.dataset import StageEntry, append_to_mixture, open_prepared
from packhorse.epoch import derive_key
from packhorse.formats import MegatronWriter
from packhorse.topology import Skips

SIZES = {"web": 90, "code": 60, "chat": 25, "books": 7}
SHORT = {"chat": 32}
"""Components of another max_seq_len than 64."""

LEGS = 7


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    random = np.random.default_rng(1)
    for name, num in SIZES.items():
        with MegatronWriter(folder / name, vocab_size=100) as writer:
            for length in random.integers(1, 30, num):
                writer.append(np.ones(length, dtype=np.int64))
        max_seq_len = SHORT.get(name, 64)
        prepare(folder / f"{name}.idx", max_seq_len=max_seq_len, output=folder / "data" / name, progress=False)
    return folder / "data"


@pytest.fixture(scope="module")
def datasets(root):
    return {name: open_prepared(root / name) for name in SIZES}


@pytest.fixture(scope="module")
def client(root):
    with connect(f"embedded:{root}") as client:
        yield client


class Run:
    """One run: what it trained on, where it stands, and what its files say."""

    def __init__(self, number, root, client, datasets):
        self.random = random = np.random.default_rng(number)
        self.client, self.datasets = client, datasets
        self.name, self.seed = f"run{number}", int(random.integers(2**63))
        self.components = [str(name) for name in random.permutation(list(SIZES))[: random.integers(1, 4)]]
        self.num_bins = int(random.integers(15, 80))
        self.stages = [(self.weights(), None)]
        self.max_seq_len = int(random.choice([0, 64, 128]))
        self.mixture, self.takedown = (root / f"{self.name}.{kind}.toml" for kind in ("mixture", "takedown"))
        weights = ", ".join(f"{name} = {weight}" for name, weight in self.stages[0][0].items())
        joined = f"max_seq_len = {self.max_seq_len}\n" if self.max_seq_len else ""
        self.mixture.write_text(f"epoch_bins = {self.num_bins}\n{joined}[[stages]]\nweights = {{{weights}}}\n")
        self.epoch = self.position = 0
        self.digest = ""
        self.skipped, self.redacted = {}, []
        self.rows = []
        """(epoch, position of the whole epoch, component, ids, redactions) in the order of training."""

    def weights(self):
        return {name: int(self.random.integers(1, 9)) for name in self.components}

    @property
    def skips(self):
        return self.skipped.get(self.epoch, Skips())

    @property
    def reached(self):
        """The position of the run that comes next."""
        return self.epoch * self.num_bins + self.skips.to_whole(self.position)

    def train(self):
        """Some steps of some topology from where the run stands."""
        random = self.random
        world_size, workers, batch_size, num_steps = (int(n) for n in random.integers(1, (4, 3, 4, 9)))
        topology = Topology(
            world_size=world_size,
            workers_per_rank=workers,
            batch_size=batch_size,
            start_position=self.position,
            remainder="empty",
        )
        rows = []
        for rank in range(world_size):
            for worker in range(workers):
                with self.client.stream_bins(
                    self.name,
                    epoch=self.epoch,
                    seed=self.seed,
                    rank=rank,
                    worker=worker,
                    topology=topology,
                    expected_digest=self.digest,
                ) as stream:
                    header = stream.header
                    for block in stream:
                        rows += self.rows_of(block, batch_size, num_steps)
                        if block.steps[-1] >= num_steps:
                            break
        self.rows += sorted(rows, key=lambda row: row[1])
        self.digest = header.digest
        self.position = topology.position_after(min(num_steps, header.num_steps) - 1, header.num_bins)
        if self.position >= header.num_bins:
            self.epoch, self.position = self.epoch + 1, 0

    def rows_of(self, block, batch_size, num_steps):
        redactions = np.full(len(block.ids), AS_IT_IS) if block.redactions is None else block.redactions
        for number, (position, end, (ids, _)) in enumerate(
            zip(block.positions.tolist(), block.bin_ends.tolist(), block.bins(), strict=True)
        ):
            if position >= 0 and block.steps[number // batch_size] < num_steps:
                component = int(block.component_ids[number])
                taken = redactions[end - len(ids) : end].tolist()
                yield (self.epoch, self.skips.to_whole(position), component, ids.tolist(), taken)

    def change(self):
        """One of what may happen to a run, ahead of where it stands."""
        what = self.random.integers(5)
        if what == 0:
            self.append()
        elif what == 1 and len(self.components) < len(SIZES):
            self.components.append(next(name for name in SIZES if name not in self.components))
            self.append()
        elif what == 2:
            self.skip()
        elif what == 3:
            self.redact()

    def append(self):
        last = 0 if len(self.stages) == 1 else self.stages[-2][1]
        position = max(self.reached, last + 1, 1) + int(self.random.integers(40))
        weights = self.weights()
        append_to_mixture(self.mixture, StageEntry(weights=weights), position, self.datasets.__getitem__)
        self.stages[-1] = (self.stages[-1][0], position)
        self.stages.append((weights, None))

    def skip(self):
        epoch = self.epoch + int(self.random.integers(2))
        first = self.skips.to_whole(self.position) if epoch == self.epoch else 0
        first += int(self.random.integers(10))
        if first + 5 < self.num_bins:
            self.skipped[epoch] = self.skipped.get(epoch, Skips()).plus(Skips.of([(first, first + 3)]))
            self.write()

    def redact(self):
        component = str(self.random.choice(self.components))
        ids = sorted({int(i) for i in self.random.integers(SIZES[component], size=9)})
        token = None if self.random.integers(2) else 5
        self.redacted.append((component, ids, token, self.reached))
        self.write()

    def write(self):
        lines = []
        for component, ids, token, position in self.redacted:
            lines += ["[[redact]]", f"component = '{component}'", f"ids = {ids}", f"seed = {self.seed}"]
            lines += [f"from_position = {position}", *([] if token is None else [f"token = {token}"])]
        for epoch, skips in self.skipped.items():
            lines += ["[[skip]]", f"positions = '{skips}'", f"epoch = {epoch}"]
        self.takedown.write_text("\n".join(lines))

    def expected(self):
        """What should have been trained on, from the lists of the mixture as it is now."""
        parts = tuple(
            Joined(
                Windowed(self.datasets[name], 1, derive_key(self.seed, number, "component")),
                self.max_seq_len // SHORT.get(name, 64) or 1,
            )
            for number, name in enumerate(self.components)
        )
        stages = tuple((tuple(w.get(name, 0) for name in self.components), until) for w, until in self.stages)
        mixed = Mixed(parts, stages, self.seed, self.num_bins)
        rows = []
        for epoch in range(self.epoch + 1):
            skips = self.skipped.get(epoch, Skips())
            for position, (component, ids, _) in enumerate(mixed.lists(epoch)):
                at = epoch * self.num_bins + position
                if at < self.reached and not any(a <= position < b for a, b in skips.ranges):
                    rows.append((epoch, position, component, ids, self.taken(component, ids, at)))
        return rows

    def taken(self, component, ids, position):
        taken = [AS_IT_IS] * len(ids)
        for name, some, token, first in self.redacted:
            if name == self.components[component] and position >= first:
                taken = [
                    (MASKED if token is None else token) if i in some else t for i, t in zip(ids, taken, strict=True)
                ]
        return taken


def check(numbers, root, client, datasets):
    changes = 0
    for number in numbers:
        run = Run(number, root, client, datasets)
        for _ in range(LEGS):
            run.train()
            run.change()
        assert run.rows == run.expected(), f"run {number}"
        changes += len(run.stages) + len(run.skipped) + len(run.redacted)
    assert changes > 2 * len(numbers)


def test_runs_that_change_course_train_on_what_the_mixture_says(root, client, datasets):
    check(range(20), root, client, datasets)


@pytest.mark.long
@pytest.mark.parametrize("first", range(20, 1020, 50))
def test_a_thousand_runs_that_change_course(root, datasets, first):
    with connect(f"embedded:{root}") as client:
        check(range(first, first + 50), root, client, datasets)
