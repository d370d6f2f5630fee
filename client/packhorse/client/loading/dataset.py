"""`PackedDataset`: the service's bins as batches, inside a PyTorch DataLoader.

Owns the dataset's arguments, and how a worker opens its stream. Leaves making batches of bins to `_batch_maker`,
progress and resuming to `_progress`, which rank this is to `ranks`, and worker processes to `loader`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from packhorse.client.api import Client
from packhorse.client.argument_hints import with_hints
from packhorse.client.batches.packed_batch import Batch
from packhorse.client.connecting import Server, Target, as_server
from packhorse.client.loading._agreement import digest_of_ranks
from packhorse.client.loading._batch_maker import BatchMaker
from packhorse.client.loading._dispatching import refuse_dispatching
from packhorse.client.loading._progress import Progress, Step
from packhorse.client.loading.folder import resolve_folder
from packhorse.client.loading.ranks import find_rank
from packhorse.client.loading.workers.current import Worker, current_worker
from packhorse.client.loading.workers.preemption import outlive_preemption
from packhorse.client.options import BalanceName, Run, as_run, with_arguments
from packhorse.client.presets import BatchFormat, Preset, PresetName
from packhorse.client.streams.cursor import NO_POSITION, Resume, State, as_worker_state
from packhorse.client.streams.stream import BinStream
from packhorse.topology import Balance, StreamMode, Topology, as_choice, checked_integer

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class PackedDataset(IterableDataset[Batch]):
    """Streams one rank's batches. Over all ranks and workers, each epoch has every sequence exactly once.

    Give it to a DataLoader with `batch_size=None`: it yields whole batches. Each dataloader worker, forked or spawned,
    opens a stream of its own; a rank's batches are the same for any number of workers.

    ```
    for epoch in dataset.epochs(3):
        for batch in DataLoader(dataset, batch_size=None, num_workers=2):
            ...
    ```

    Every batch (a `PackedBatch`, or a `Batch` with the preset's keys) has a `cursor`. Save the cursor of the last batch
    that was trained on, and `load_state_dict(cursor)` continues after it, under any world size, batch size and number
    of workers. From there on, earlier epochs cannot be chosen again.

    Example:
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1, seed=1)
        >>> [batch["ids"].tolist() for batch in dataset]
        [[3, 2], [0, 1]]

    Args:
        target: a target of `connect`, a function that returns a Client, or a Server. Without `dataset`, the path of a
            prepared folder or of a mixture's file.
        dataset: its name on the server, or a Run, which can also skip positions; None for the folder's.
        tokens: a TokenSource, a path of token files, or anything that gives a sequence's tokens for its id; see
            `as_token_source`. None for those that the folder was prepared from, or those of a server with `--tokens`.
        batch_size: bins in a batch, for each rank; None if `topology` gives it.
        seed: of the run, in [0, 2^64); None for the seed of the Run, or 0.
        preset: name of a training stack, or a Preset, whose keys the batches get; None for PackedBatch's own.
        balance: where ranks wait for each other: `none`, `micro-step` (FSDP, expert parallelism) or `optimizer-step`
            (DDP with accumulation). Each optimizer step trains on the same bins with any balance. None for the balance
            of `topology`, which is `none` by default.
        rank: data-parallel (rank, world_size), or a device mesh; None asks Megatron, torch.distributed or the launcher.
            See `LoaderOptions.rank`.
        topology: how ranks share the epoch: remainder, mode, accumulation, batch schedule. Its world_size is the
            rank's.
        batch: how a batch looks: separators, labels, loss mask and the like.

    Raises:
        ValueError: an argument is out of range, or is given twice.
        DigestMismatchError: there is a process group, and another rank got another dataset of this name. (With a
            process group, each rank asks for the dataset when this object is made.)
    """

    @with_hints
    def __init__(
        self,
        target: Target | Server,
        dataset: str | Run | None = None,
        tokens: Any = None,
        *,
        batch_size: int | None = None,
        seed: int | None = None,
        preset: Preset | PresetName | None = None,
        balance: Balance | BalanceName | None = None,
        rank: "tuple[int, int] | DeviceMesh | None" = None,
        topology: Topology | None = None,
        batch: BatchFormat | None = None,
    ) -> None:
        target, dataset, tokens = resolve_folder(target, dataset, tokens)
        self.run = as_run(dataset, seed)
        self.rank, world_size = find_rank(rank)
        self.topology = _loader_topology(topology, batch_size, balance, world_size)
        self._server = as_server(target)
        self.maker = BatchMaker(tokens, with_arguments(batch or BatchFormat(), preset=preset))
        if self.maker.preset is not None:
            self.maker.preset.warn_of_cost(self.topology.most_bins_of_rank)
        self.progress = Progress(self.run.epoch, self.run.seed, self.topology)
        self.progress.digests.bind(digest_of_ranks(self._server, self.run, world_size))
        self._counted: Resume | None = None  # the beginning of the iteration whose steps were counted last
        self._num_steps = 0  # the steps of that iteration

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self.progress.next.epoch

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yields the remaining epochs up to `num_epochs`; the loop's body iterates each.

        `for epoch in dataset.epochs(3):` goes through epochs 0, 1 and 2. After a cursor of epoch 1 it goes through the
        rest of epoch 1, and through epoch 2. If no epoch is left after a cursor, it yields none and warns.

        Raises:
            ValueError: these epochs are done, although no cursor was loaded.
        """
        return self.progress.epochs(checked_integer("num_epochs", num_epochs, 0))

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next iteration, from its beginning.

        The current epoch keeps its position if it was resumed and goes on; one that has ended begins again.

        Raises:
            ValueError: the epoch is negative, or a cursor was loaded and the epoch is already done.
        """
        self.progress.set_epoch(checked_integer("epoch", epoch, 0))

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of this copy of the dataset; a StatefulDataLoader saves it for each worker.

        With a plain DataLoader the batches are made in the workers' copies: save a batch's `cursor` instead.
        """
        return self.progress.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration continue after a batch's `cursor` or a `state_dict()`.

        The dataset also takes the whole state of a StatefulDataLoader, and then continues after that loader's last
        batch, under any world size, batch size and number of workers. A StatefulDataLoader itself can load its state
        only with as many workers as saved it.

        Raises:
            ValueError: it is not such a state, or was saved with another seed or, a worker's, another topology.
        """
        self.progress.load(state)

    def __repr__(self) -> str:
        state, maker = self.progress.state(), self.maker
        position = "unknown" if state["position"] == NO_POSITION else f"{state['position']:,}"
        preset = "" if maker.preset is None else f", preset {maker.preset.name!r}"
        return (
            f"<PackedDataset of {self.run.dataset!r} at {self._server.name}: {maker.tokens!r}, rank {self.rank} of "
            f"{self.topology.world_size}, batch_size {self.topology.batch_schedule or self.topology.batch_size}, seed "
            f"{self.run.seed}, epoch {state['epoch']}, next position {position}{preset}>"
        )

    def __len__(self) -> int:
        """Number of batches that the next iteration yields to this rank, over all its workers; asks the server once.

        A child process asks, so that this process does not use gRPC and may fork its workers (see `Server.ask`).
        """
        resume = self.progress.next
        if self._is_independent and get_worker_info() is None:
            raise TypeError("a dataset of mode 'independent' has no length: every worker goes through the whole epoch")
        if self._counted != resume:
            self._num_steps = self._server.ask(partial(self._count_steps, resume))
            self._counted = resume
        return self._num_steps

    def __iter__(self) -> Iterator[Batch]:
        """Yields this worker's batches of the epoch; may raise any exception of the client.

        Without workers, the next iteration after an epoch's end goes through the next epoch. A worker runs ahead of the
        training loop, so it cannot know whether the loop reached the epoch's end or was left early: with workers, loop
        over `epochs`.

        Raises:
            ValueError: workers have gone through the epoch already, and the next one is not chosen; or the cursor is of
                one worker of an INDEPENDENT dataset, and there are several; or accelerate was given a DataLoader of
                this dataset to prepare.
        """
        refuse_dispatching()
        if get_worker_info() is not None:
            outlive_preemption(lambda: self.progress.is_exiting)
        return self.progress.follow(self._steps())

    def iterate(self) -> Iterator[Batch]:
        """Yields this worker's batches; unlike `__iter__`, it leaves state and epochs to the loader."""
        return (step.batch for step in self._steps() if step.batch is not None)

    def _steps(self) -> Iterator[Step[Batch]]:
        """Yields this worker's steps, and at the epoch's end one without a batch."""
        worker = current_worker()
        is_one_of_many = self._is_independent and worker.num_workers > 1
        resume = self.progress.start_iteration(needs_position_of_worker=is_one_of_many)
        facts = self.progress.facts
        with (
            self._server.open() as client,
            self._stream(client, resume, worker, with_tokens=self.maker.wants_tokens) as stream,
        ):
            self.run.check_skips(resume.epoch, stream.header)
            if not stream.header.components:  # a mixture's digest changes with its stages
                self.progress.digests.compare(self.run.dataset, stream.header.digest)

            def cursor_after(step: int, steps_into: int) -> State:
                position, digest = stream.position_after(step), stream.header.digest
                return resume.cursor_at(position, steps_into, digest=digest, seed=self.run.seed, facts=facts)

            pin_memory = get_worker_info() is None and torch.cuda.is_available()
            for step, batch in self.maker.batches(stream, pin_memory=pin_memory):
                cursor = cursor_after(step, stream.topology.steps_into_optimizer_step(step, stream.header.num_bins))
                steps_ahead = worker.num_workers - 1  # the other workers' steps come before this one's next
                state = as_worker_state(cursor, steps_ahead, worker.num_workers, facts)
                if is_one_of_many:  # the state is this worker's own; the batch's cursor would be taken for all workers'
                    cursor = cursor | {"position": NO_POSITION}
                yield Step(state, type(batch)(batch, cursor=cursor))
            end = cursor_after(stream.header.num_steps - 1, steps_into=0)
            state = as_worker_state(end, steps_ahead=0, num_workers=worker.num_workers, facts=facts)
            yield Step(state | {"finished": True}, batch=None)

    def _count_steps(self, resume: Resume) -> int:
        """Returns the number of a rank's steps from `resume` on, from the header of a stream of one worker."""
        only_worker = Worker(number=0, num_workers=1)
        with self._server.open() as client, self._stream(client, resume, only_worker) as stream:
            self.run.check_skips(resume.epoch, stream.header)
            # In shared memory: the process that asked is bound too, also if a child of it runs this.
            self.progress.digests.bind(resume.digest or stream.header.digest)
            return stream.header.num_steps - resume.first_step

    @property
    def _is_independent(self) -> bool:
        return self.topology.mode is StreamMode.INDEPENDENT

    def _stream(self, client: Client, resume: Resume, worker: Worker, *, with_tokens: bool = False) -> BinStream:
        """Returns the stream of one worker of this rank, from `resume` on.

        After a cursor within an optimizer step, the DataLoader's worker 0 serves the first step that is not done, so
        the server's number of a worker differs from the DataLoader's.
        """
        number = worker.number
        if not self._is_independent:
            steps_ahead = worker.number if resume.steps_ahead is None else resume.steps_ahead
            number = (resume.first_step + steps_ahead) % worker.num_workers
        if digest := self.progress.digests.agreed:
            client.bind(self.run.dataset, digest)
        return client.stream_bins(
            self.run.dataset,
            epoch=resume.epoch,
            seed=self.run.seed,
            rank=self.rank,
            worker=number,
            topology=replace(self.topology, workers_per_rank=worker.num_workers, start_position=resume.position),
            skip=self.run.skips(resume.epoch),
            first_step=resume.first_step,
            expected_digest=resume.digest,
            with_tokens=with_tokens,
        )


def _loader_topology(
    topology: Topology | None, batch_size: int | None, balance: Balance | BalanceName | None, world_size: int
) -> Topology:
    """Returns the topology of a dataset, from its arguments and the world size; refuses fields that others decide."""
    balance = None if balance is None else as_choice("balance", Balance, balance)
    if batch_size is None and topology is None:
        raise ValueError("batch_size is missing: bins in a batch, for each rank")
    topology = topology or Topology()
    if topology.world_size not in (1, world_size):  # 1 is the default: it is not given
        raise ValueError(
            f"topology has world_size {topology.world_size}, and this process is one of {world_size} data-parallel "
            "ranks; leave world_size out, or give rank=(rank, world_size)"
        )
    default = Topology()
    for name, instead in (("workers_per_rank", "num_workers of the loader"), ("start_position", "load_state_dict")):
        if getattr(topology, name) != getattr(default, name):
            raise ValueError(f"{name} of a loader's topology cannot be set; use {instead}")
    size = None if batch_size is None else checked_integer("batch_size", batch_size, 1)
    topology = replace(with_arguments(topology, batch_size=size, balance=balance), world_size=world_size)
    if topology.accumulation > 1 and topology.steps_per_optimizer_step == 1:
        raise ValueError(
            "accumulation has no effect without a balance or a batch schedule; leave it out, or give a balance"
        )
    return topology
