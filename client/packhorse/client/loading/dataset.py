"""`PackedDataset`: the service's bins as batches, inside a PyTorch DataLoader.

Owns how a worker finds its stream and what a checkpoint holds; leaves streams to `stream` and tensors to
`batches.batch`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from packhorse.client.api import NO_SKIPS, Client
from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.batches.separators import Separators
from packhorse.client.loading._arguments import (
    Connection,
    Skip,
    SkipsByEpoch,
    Target,
    checked_epoch,
    checked_name,
    checked_seed,
)
from packhorse.client.loading._batch_maker import BatchMaker
from packhorse.client.loading._shared_resume import SharedResume
from packhorse.client.loading.ranks import find_rank
from packhorse.client.presets import Preset
from packhorse.client.streams.blocks import BinBlock
from packhorse.client.streams.cursor import (
    NO_POSITION,
    STATE_VERSION,
    Cursor,
    Resume,
    bins_per_step_of,
    optimizer_step_shape,
)
from packhorse.client.streams.stream import BinStream
from packhorse.client.transport.access import Access
from packhorse.formats.asking import RetryPolicy
from packhorse.topology import (
    DEFAULT_COST_LINEAR,
    Balance,
    BatchSchedule,
    RemainderPolicy,
    StreamMode,
    Topology,
    as_batch_size,
    as_choice,
    checked_integer,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
import sys
from types import FrameType

_DEALERS = ("DataLoaderDispatcher.__iter__", "IterableDatasetShard.__iter__")


def refuse_dispatching() -> None:
    """Raises where accelerate iterates in order to deal out; seen in this process and in workers forked from it.

    Raises:
        ValueError: it does.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "accelerate.data_loader" and frame.f_code.co_qualname in _DEALERS:
            raise ValueError(
                "accelerate deals this DataLoader's batches over the ranks, but a PackedDataset is divided over them "
                "already; do not pass the DataLoader to accelerator.prepare, or train with create_packed_dataloader, "
                "whose loader prepare leaves as it is"
            )
        frame = frame.f_back


class PackedDataset(IterableDataset[PackedBatch]):
    """Streams one rank's batches; every sequence comes exactly once per epoch over all ranks and workers.

    Give it to a DataLoader with `batch_size=None`: it yields whole batches. Each dataloader worker, forked or spawned,
    opens a stream of its own; a rank's batches are the same for any number of workers.

    ```
    for epoch in dataset.epochs(3):
        for batch in DataLoader(dataset, batch_size=None, num_workers=2):
            ...
    ```

    Every batch (see `PackedBatch`) carries a `cursor`. Save the cursor of the last batch that was trained on, and
    `load_state_dict(cursor)` goes on behind it, under any world size, batch size and number of workers. Epochs only go
    forward from there.

    Example:
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1, seed=1)
        >>> [batch["ids"].tolist() for batch in dataset]
        [[3, 2], [0, 1]]

    Args:
        target: what `connect` takes, or a function without arguments that returns a Client (a module's own function
            where workers are spawned), for credentials and the like. `MemoryDatasets` for tests of a trainer.
        dataset: its name on the server.
        tokens: a TokenSource, a path of token files, or anything that gives a sequence's tokens for its id; see
            `as_token_source`.
        batch_size: bins in a batch, for each rank; or, as Megatron writes it, `"0:768 250B:1536"`: bins of all ranks in
            an optimizer step, each number from some point of the run on (see `BatchSchedule`).
        seed: of the run, in [0, 2^64).
        epoch: to begin with.
        rank: data-parallel rank; when None, as the device mesh, Megatron, torch.distributed or the launcher says.
        world_size: data-parallel degree, likewise.
        device_mesh: where a model is divided over ranks: those that share it get the same batches.
        remainder: what happens to a last step that is not full.
        mode: whether the ranks share the epoch. INDEPENDENT streams resume by a cursor where each rank has one worker.
        balance: where ranks wait for each other, and so what is made equal: `none`, `micro-step` (FSDP, expert
            parallelism) or `optimizer-step` (DDP with accumulation). Every optimizer step trains on the same bins.
        accumulation: steps (micro-batches of a rank) that make one optimizer step; bins are exchanged within it.
        cost_linear: cost of a token beside attention; `cost_linear_of(model)` gives a model's.
        skip: positions to leave out of every epoch, e.g. "1200:1300", or of some: `{3: "1200:1300"}`. Ranges may be
            added after a cursor, never before it.
        pad_token_id: token that fills a bin's free end, in [0, 2^31).
        loss_mask: 1 (or True) for tokens to predict, 0 for others, as a source of the same ids and lengths (what
            `tokens` takes); None where every token is predicted.
        separators: special tokens put around each sequence; the plan must have kept `extra_tokens` for them.
        preset: name of a training stack, or a Preset, whose keys and conventions the batches are to have (see
            `presets`); None for all of PackedBatch's.
        flatten: whether a batch's sequences come end to end in one row without padding. None: as the preset wants it,
            else False.
        shift_labels: False for models that shift labels inside (Hugging Face), True for losses that compare the same
            index. None: as the preset wants it, else False.
        continue_positions: whether position ids of a split sequence's pieces go on from piece to piece; otherwise they
            restart with each.
        shared_prefix: of a dataset with groups, whether each group's first sequence is a prefix that the others see:
            masks built of a batch show it to them, and their position ids go on where it ends.
        component_rows: of a mixture that joins short bins into long ones, whether rows are the short ones: B bins of L
            tokens, each of k rows, come as [B·k, L / k]. Where a batch has components of several lengths, its rows are
            as short as all of them allow.
        timeout_seconds: how long a stream goes on without an answer, as `connect` takes it.
        retry: the same in detail, as `connect` takes it. Where the target is a function, its Client knows them.
        access: certificates and tokens for the server; None for those of the environment.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        target: Target,
        dataset: str,
        tokens: Any,
        *,
        batch_size: int | str | BatchSchedule,
        seed: int = 0,
        epoch: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        device_mesh: "DeviceMesh | None" = None,
        remainder: RemainderPolicy | str = RemainderPolicy.SPREAD,
        mode: StreamMode | str = StreamMode.PARTITION,
        balance: Balance | str = Balance.NONE,
        accumulation: int = 1,
        cost_linear: int = DEFAULT_COST_LINEAR,
        skip: Skip = NO_SKIPS,
        loss_mask: Any = None,
        separators: Separators | None = None,
        preset: Preset | str | None = None,
        pad_token_id: int = 0,
        flatten: bool | None = None,
        shift_labels: bool | None = None,
        continue_positions: bool = False,
        shared_prefix: bool = False,
        component_rows: bool = False,
        timeout_seconds: float | None = None,
        retry: RetryPolicy | None = None,
        access: Access | None = None,
    ) -> None:
        self.dataset = checked_name(dataset)
        self.rank, self.world_size = find_rank(rank, world_size, device_mesh)
        self.topology = Topology(
            world_size=self.world_size,
            batch_size=as_batch_size(batch_size),
            remainder=as_choice("remainder", RemainderPolicy, remainder),
            mode=as_choice("mode", StreamMode, mode),
            balance=as_choice("balance", Balance, balance),
            accumulation=accumulation,
            cost_linear=cost_linear,
        )
        if accumulation > 1 and self.topology.steps_per_optimizer_step == 1:
            raise ValueError(
                "accumulation has no effect without a balance or a batch schedule; leave it out, or give a balance"
            )
        self.batch_size = self.topology.batch_size
        self.skip = SkipsByEpoch(skip)
        self.seed = checked_seed(seed)
        self._connection = Connection(target, timeout_seconds, retry, access)
        self.maker = BatchMaker(
            tokens,
            loss_mask=loss_mask,
            separators=separators,
            preset=preset,
            pad_token_id=pad_token_id,
            flatten=flatten,
            shift_labels=shift_labels,
            continue_positions=continue_positions,
            shared_prefix=shared_prefix,
            component_rows=component_rows,
        )
        if self.maker.preset is not None:
            self.maker.preset.warn_of_cost(self.topology.most_bins_of_rank)
        self.progress = SharedResume(Resume(epoch=checked_epoch(epoch)))
        self._own: Resume | None = None  # a worker's, loaded by a StatefulDataLoader
        self._state: tuple[int, dict[str, Any]] | None = None  # of which choice, and where it stands
        self._num_steps: tuple[Resume, int] | None = None

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration goes through."""
        return self._next_resume().epoch

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yields the epochs up to `num_epochs` that are left; iterations in the loop's body go through them.

        `for epoch in dataset.epochs(3):` goes through epochs 0, 1 and 2. Behind a cursor of epoch 1 it goes through
        what is left of epoch 1, and through epoch 2. Where a cursor's training was complete, a warning says so.

        Raises:
            ValueError: these epochs were gone through already, without a cursor that says so.
        """
        return self.progress.epochs(checked_integer("num_epochs", num_epochs, 0))

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next iteration, from its beginning.

        The epoch that is set already stays as it is, so that a resumed epoch keeps its position.

        Raises:
            ValueError: the epoch is negative, or was done before the cursor that was loaded.
        """
        self.progress.set_epoch(checked_epoch(epoch))

    def state_dict(self) -> dict[str, Any]:
        """Returns where this copy of the dataset is; what a StatefulDataLoader saves for each worker.

        With a plain DataLoader the batches are made in the workers' copies: save a batch's `cursor` instead.
        """
        if self._state is not None and self._state[0] == self.progress.choice:
            return self._state[1]
        resume = self._next_resume()
        state = self._state_at(resume, resume.digest, resume.first_step, resume.position)
        if steps := resume.first_step % self.topology.steps_per_optimizer_step:
            state |= {"steps_into_optimizer_step": steps, "optimizer_step_shape": optimizer_step_shape(self.topology)}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where a batch's `cursor` or a `state_dict()` stands, from the next iteration on.

        The whole state of a StatefulDataLoader, given to the dataset, goes on behind the loader's last batch, under any
        world size, batch size and number of workers. Given to such a loader, it wants those that saved it.

        Raises:
            ValueError: it is neither, or of another seed or topology.
        """
        resume = Resume.from_state(state, seed=self.seed, topology=self.topology)
        info = get_worker_info()
        if info is None:
            self.progress.choose(replace(resume, first_turn=resume.first_step))  # workers, if any, are new ones
            return
        if state.get("workers_per_rank", info.num_workers) != info.num_workers:
            raise ValueError(
                f"the loader's state was saved with {state['workers_per_rank']} workers, now there are "
                f"{info.num_workers}; give the state to the dataset, dataset.load_state_dict(state), or load it into a "
                "PackedStatefulDataLoader (packhorse.client.trainers.stateful), which do with any"
            )
        self._state, self._own = None, resume
        # The main process is to know of it too: its StatefulDataLoader sent the state unread. One that was saved at an
        # epoch's end goes to workers that are replaced at once, and the others begin where these say.
        if info.id == 0 and resume.epoch >= self.progress.load().epoch:
            self.progress.store(resume)

    def __repr__(self) -> str:
        resume, maker = self._next_resume(), self.maker
        preset = "" if maker.preset is None else f", preset {maker.preset.name!r}"
        return (
            f"<PackedDataset of {self.dataset!r} at {self._connection.where}: {maker.tokens!r}, rank {self.rank} of "
            f"{self.world_size}, batch_size {self.batch_size}, seed {self.seed}, epoch {resume.epoch}, next position "
            f"{resume.start_position:,}{preset}>"
        )

    def __len__(self) -> int:
        """Batches that the next iteration yields to this rank, over all its workers; asks the server once.

        A child process asks, so that this one has not used gRPC and may fork its workers (see `_apart`).
        """
        resume = self._next_resume()
        if self._is_independent and get_worker_info() is None:
            raise TypeError("an INDEPENDENT dataset has as many batches as epochs times workers; no length is known")
        if self._num_steps is None or self._num_steps[0] != resume:
            self._num_steps = (resume, self._connection.ask(partial(self._count_steps, resume)))
        return self._num_steps[1]

    def __iter__(self) -> Iterator[PackedBatch]:
        """Goes through this worker's batches of the epoch; the client's exceptions pass through.

        Without workers, an iteration that has come to the epoch's end is followed by one of the next epoch. A
        DataLoader's workers cannot tell its end from a loop that was left, so loop over `epochs` there.

        Raises:
            ValueError: workers have gone through the epoch already, and nothing says which one comes next; or a cursor
                is to be resumed at which several workers of an INDEPENDENT dataset do not stand; or accelerate was
                given a DataLoader of this dataset to prepare.
        """
        refuse_dispatching()
        return self._epoch_of_worker()

    def _epoch_of_worker(self) -> Iterator[PackedBatch]:
        info = get_worker_info()
        choice, iteration = self.progress.choice, self.progress.iteration
        is_first = info is None or info.id == 0
        if is_first and self._own is None and self.progress.is_gone_through:
            raise ValueError(
                f"epoch {self.epoch} was gone through already, and nothing says which one comes next; loop with `for "
                "epoch in dataset.epochs(num_epochs)`, or call dataset.set_epoch before you iterate the DataLoader "
                "again, with the same epoch for the same batches, as in validation"
            )
        num_batches = 0
        for batch in self.iterate():
            num_batches += 1
            yield batch
        if info is None:
            assert self._state is not None
            self.progress.finish(choice, self._state[1]["digest"])
        elif is_first and num_batches:
            self.progress.mark_gone_through(iteration)

    def iterate(self) -> Iterator[PackedBatch]:
        """Yields this worker's batches as `__iter__` does; whoever iterates says when the epoch is done."""
        info = get_worker_info()
        worker, workers_per_rank = (info.id, info.num_workers) if info else (0, 1)
        resume = self._next_resume()
        if self._is_independent and workers_per_rank > 1 and self._own is None and resume.start_position:
            raise ValueError(
                f"position {resume.start_position} is one worker's in mode 'independent', and here are "
                f"{workers_per_rank}; resume with as many workers as saved it (num_workers=1), or train with mode "
                "'partition'"
            )
        self._own = None
        with self._connection.open() as client, self._stream(client, resume, worker, workers_per_rank) as stream:
            yield from self._batches(stream, resume, workers_per_rank)

    def _batches(self, stream: BinStream, resume: Resume, workers_per_rank: int) -> Iterator[PackedBatch]:
        header, choice = stream.header, self.progress.choice
        self.skip.check(resume.epoch, header)
        pin_memory = get_worker_info() is None and torch.cuda.is_available()
        self.maker.prepare(header, pin_memory=pin_memory)
        for block in stream:
            if stream.header.digest != header.digest:  # stages were appended to a mixture
                header = stream.header
                self.maker.prepare(header, pin_memory=pin_memory)
            for step, batch in self._batches_of(stream, block):
                has_position = not self._is_independent or workers_per_rank == 1
                cursor = Cursor(
                    digest=header.digest,
                    seed=self.seed,
                    epoch=resume.epoch,
                    position=stream.position_after(step) if has_position else NO_POSITION,
                )
                if steps := stream.topology.steps_into_optimizer_step(step, header.num_bins):
                    cursor |= {
                        "steps_into_optimizer_step": steps,
                        "optimizer_step_shape": optimizer_step_shape(self.topology),
                    }
                state = self._state_at(resume, header.digest, step + 1, cursor["position"])
                self._state = choice, state | dict(cursor)
                yield self._deliver(batch, cursor)
        position = stream.position_after(header.num_steps - 1)
        state = self._state_at(resume, header.digest, header.num_steps, position)
        self._state = choice, state | {"finished": True}

    def _batches_of(self, stream: BinStream, block: BinBlock) -> Iterator[tuple[int, PackedBatch]]:
        """Yields a block's steps with their batches."""
        end = 0
        for stretch, steps in stream.topology.by_stretch(block.steps):
            begin, end = end, end + len(steps) * stretch.batch_size
            batches = self.maker.assemble_steps(block.slice(begin, end), stretch.batch_size)
            yield from zip(steps, batches, strict=True)

    def _count_steps(self, resume: Resume) -> int:
        with self._connection.open() as client, self._stream(client, resume, 0, 1) as stream:
            self.skip.check(resume.epoch, stream.header)
            return stream.header.num_steps - resume.first_step

    def _deliver(self, batch: PackedBatch, cursor: Cursor) -> PackedBatch:
        return PackedBatch(self.maker.convert(batch), cursor=cursor)

    @property
    def _is_independent(self) -> bool:
        return self.topology.mode is StreamMode.INDEPENDENT

    def _next_resume(self) -> Resume:
        return self._own or self.progress.load()

    def _state_at(self, resume: Resume, digest: str, next_step: int, position: int) -> dict[str, Any]:
        topology = self.topology
        return {
            "version": STATE_VERSION,
            "workers_per_rank": getattr(get_worker_info(), "num_workers", 0),
            "digest": digest,
            "seed": self.seed,
            "epoch": resume.epoch,
            "position": position,
            "start_position": resume.start_position,
            "first_step": next_step,
            "first_turn": resume.first_turn,
            "bins_per_step": bins_per_step_of(topology),
            "steps_per_optimizer_step": topology.steps_per_optimizer_step,
            "shape": optimizer_step_shape(topology),
        }

    def _stream(self, client: Client, resume: Resume, worker: int, workers_per_rank: int) -> BinStream:
        first_turn = 0 if self._is_independent else resume.first_turn
        return client.stream_bins(
            self.dataset,
            epoch=resume.epoch,
            seed=self.seed,
            rank=self.rank,
            worker=(worker + first_turn) % workers_per_rank,
            topology=replace(self.topology, workers_per_rank=workers_per_rank, start_position=resume.start_position),
            skip=self.skip.of(resume.epoch),
            first_step=resume.first_step,
            expected_digest=resume.digest,
        )
