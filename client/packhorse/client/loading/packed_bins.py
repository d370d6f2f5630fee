"""`PackedBins`: an epoch's bins as rows by index, for other loaders and samplers.

Owns the dataset's arguments, its epochs and cursors, and what each process opens. Leaves the meaning of an index, the
headers of epochs, requests and rows to `loading.bins`, and making batches, from which rows are cut, to `_batch_maker`.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import index as as_index
from typing import Any, Literal, SupportsIndex

import numpy as np
from torch.utils.data import Dataset, get_worker_info

from packhorse.client.api import Client
from packhorse.client.argument_hints import with_hints
from packhorse.client.batches.packed_batch import Batch, PackedBatch
from packhorse.client.connecting import Server, Target, as_server
from packhorse.client.loading._agreement import digest_of_ranks
from packhorse.client.loading._batch_maker import BatchMaker
from packhorse.client.loading._progress import Progress
from packhorse.client.loading.bins.headers import EpochHeaders
from packhorse.client.loading.bins.indices import BinAddress, Indices
from packhorse.client.loading.bins.reader import BinsReader
from packhorse.client.loading.bins.row_cutting import cut_rows, refuse_whole_batches
from packhorse.client.loading.bins.rows import Rows
from packhorse.client.loading.folder import resolve_folder
from packhorse.client.loading.workers.preemption import outlive_preemption
from packhorse.client.options import Run, as_run, with_arguments
from packhorse.client.presets import BatchFormat, Preset, PresetName
from packhorse.client.presets.batch_format import preset_of
from packhorse.client.streams.blocks import BinBlock, joined
from packhorse.client.streams.cursor import Cursor, without_loader
from packhorse.topology import Topology, checked_integer

_ONE_BIN = Topology()
"""One rank with one bin in a step: rows have no other topology."""
# A block without bins, which `padded` fills with empty ones.
_NO_BINS = BinBlock(
    ids=np.zeros(0, dtype=np.int64),
    lengths=np.zeros(0, dtype=np.int32),
    bin_ends=np.zeros(0, dtype=np.int64),
    positions=np.zeros(0, dtype=np.int64),
)


@dataclass(slots=True, eq=False)
class _Opened:
    """What one process has opened; a fork opens its own."""

    pid: int
    """The process's id."""
    reader: BinsReader
    """Its connection, and what was read over it."""
    assembling: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread that makes a batch."""
    is_prepared: bool = False
    """Whether this process's BatchMaker was prepared for the dataset."""


class PackedBins(Dataset[dict[str, Any]]):
    """An epoch's bins as a map-style dataset, with `len` and `[position]`. One request brings many positions.

    It is for a DataLoader with a sampler, Hugging Face's Trainer, accelerate, Grain and other code that reads by index.
    The epoch is already shuffled, so `shuffle=False` loses nothing; `shuffle=True` is exact as well. The sampler
    decides which rank reads which index. A sampler that repeats indices if the rows do not fill a step
    (DistributedSampler, accelerate) repeats sequences: `num_bins_multiple_of` prevents that.

    ```
    bins = PackedBins("127.0.0.1:50051", "corpus", "corpus.idx", seed=1, num_bins_multiple_of=world_size * 8)
    sampler = DistributedSampler(bins, shuffle=False)
    for epoch in range(3):
        bins.set_epoch(epoch)
        for batch in DataLoader(bins, batch_size=8, sampler=sampler, num_workers=2):
            ...
    ```

    A row is a dict of tensors [max_seq_len] that stack: `input_ids`, `labels`, `sequence_ids` and `position_ids` as in
    PackedBatch, and `position`, an int64 scalar, -1 for an empty bin. A mixture's rows also have `component_id`, the
    index of their component. With a preset, a row has that training stack's keys.
    For whole batches, with the layout that masks are made from, give the DataLoader `collate_fn=bins.collate`.
    Hugging Face's Trainer takes `preset="rows"` as it is, and `preset="padding-free"` with `data_collator=bins.collate`
    and `remove_unused_columns=False`.

    A forked or pickled copy opens its own connection when it is first read. Bins are read ahead if indices are evenly
    spaced, so that reading in order makes few requests.

    Example:
        >>> bins = PackedBins("embedded:datasets", "corpus", "corpus.idx", seed=1)
        >>> len(bins), bins[1]["input_ids"].tolist()
        (2, [0, 1, 2, 3, 4, 0, 1, 2])
        >>> from torch.utils.data import DataLoader
        >>> batch = next(iter(DataLoader(bins, batch_size=2)))
        >>> batch["input_ids"].shape, batch["position"].tolist()
        (torch.Size([2, 8]), [0, 1])

    Args:
        target: a target of `connect`, a function that returns a Client, or a Server. Without `dataset`, the path of a
            prepared folder or of a mixture's file.
        dataset: its name on the server, or a Run, which can also skip positions and begin at a later epoch; None for
            the folder's.
        tokens: a TokenSource, a path of token files, or anything that gives a sequence's tokens for its id; None for
            those that the folder was prepared from.
        seed: of the run, in [0, 2^64); None for the seed of the Run, or 0.
        preset: name of a preset, or a Preset. With one that joins the bins of a batch into one row, use
            `collate_fn=bins.collate`.
        num_epochs: number of epochs in the indices, each in its own order, for loaders without `set_epoch` (Grain):
            with N rows in the first epoch, index N is position 0 of the next. The epoch of index 0 is the first, also
            after a cursor.
        num_bins_multiple_of: empty bins, all padding, fill each epoch up to a multiple of this number of rows.
        batch: how a row, or `collate`'s batch, looks.
        output: "torch" for tensors; "numpy" for plain dicts of arrays, for Grain and JAX.

    Raises:
        ValueError: an argument is out of range, or has no effect on rows.
    """

    @with_hints
    def __init__(
        self,
        target: Target | Server,
        dataset: str | Run | None = None,
        tokens: Any = None,
        *,
        seed: int | None = None,
        preset: Preset | PresetName | None = None,
        num_epochs: int = 1,
        num_bins_multiple_of: int = 1,
        batch: BatchFormat | None = None,
        output: Literal["torch", "numpy"] = "torch",
    ) -> None:
        if output not in ("torch", "numpy"):
            raise ValueError(f"output must be 'torch' or 'numpy', got {output!r}")
        target, dataset, tokens = resolve_folder(target, dataset, tokens)
        self.run = as_run(dataset, seed)
        self.num_epochs = checked_integer("num_epochs", num_epochs, 1)
        self.num_bins_multiple_of = checked_integer("num_bins_multiple_of", num_bins_multiple_of, 1)
        form = with_arguments(batch or BatchFormat(), preset=preset)
        if form.component_rows:
            raise ValueError("component_rows has no effect on PackedBins: a row is a bin; use PackedDataset")
        if form.media is not None:
            raise ValueError("media cannot be used with PackedBins, whose rows must stack; use PackedDataset")
        chosen_preset = preset_of(form)
        if form.shared_prefix == "tree" or (chosen_preset is not None and chosen_preset.folds):
            raise ValueError("trees cannot be used with PackedBins, whose rows must stack; use PackedDataset")
        self._server = as_server(target)
        self._output = output
        self._maker = BatchMaker(tokens, form)
        self._progress = Progress(self.run.epoch, self.run.seed, _ONE_BIN)
        self._headers = EpochHeaders(self._server, self.run, digest_of_ranks(self._server, self.run))
        self._indices: Indices | None = None
        self._last_opened: _Opened | None = None
        self._locks: dict[int, threading.RLock] = {}  # by process id: a fork must not wait for a thread of its parent

    @property
    def epoch(self) -> int:
        """The epoch of index 0."""
        return self._progress.next.epoch

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of index 0, also in workers that are already running. Call it between iterations.

        If it is the current epoch, nothing changes, so that a resumed epoch keeps its position.

        Raises:
            ValueError: the epoch is negative, or a cursor was loaded and the epoch is already done.
        """
        self._progress.set_epoch(checked_integer("epoch", epoch, 0))

    def cursor_after(self, num_rows: int) -> Cursor:
        """Returns the cursor after rows [0, num_rows), over all ranks.

        Save it with the model. `load_state_dict` of PackedBins or PackedDataset continues there, under any number of
        ranks.

        Example:
            >>> bins = PackedBins("embedded:datasets", "corpus", "corpus.idx", seed=1)
            >>> cursor = bins.cursor_after(1)
            >>> bins.load_state_dict(cursor)
            >>> len(bins), cursor["epoch"], cursor["position"]
            (1, 0, 1)

        Raises:
            IndexError: there are fewer rows.
            ValueError: `num_rows` is not an integer of at least 0.
        """
        num_rows = checked_integer("num_rows", num_rows, 0)
        indices = self._current_indices()
        if num_rows == 0:
            resume = self._progress.next
            epoch, position, digest = resume.epoch, resume.position, indices.headers[0].digest
        else:
            last = indices.find(num_rows - 1)
            epoch, digest = last.epoch, last.header.digest
            position = min(last.position + 1, last.header.num_bins)  # empty bins at an epoch's end have no position
        return Cursor(digest=digest, seed=self.run.seed, epoch=epoch, position=position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues at a cursor: index 0 is then its position, and earlier positions are left out.

        Raises:
            ValueError: it is not a cursor, was saved with another seed, or is within an optimizer step.
        """
        cursor = without_loader(state)
        if cursor.get("steps_into_optimizer_step") and not cursor.get("finished"):
            raise ValueError(
                "the cursor is within an optimizer step of a balanced run, whose bins were not trained on in their "
                "order; resume with PackedDataset, or from a cursor at an optimizer step's end"
            )
        resume = self._progress.read(cursor)
        self._headers.forget()
        self._progress.choose(resume)

    def __len__(self) -> int:
        """Number of rows in all epochs together; asks the server once, in a child process (see `Server.ask`)."""
        return self._current_indices().ends[-1]

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        """Returns one row; negative indices count from the end.

        Raises:
            IndexError: there is no such row.
            ValueError: the preset or the format makes whole batches, not rows.
        """
        indices = self._current_indices()
        index_from_start = indices.from_start(as_index(index))
        return self._opened().reader.rows(indices).row(index_from_start)

    def __getitems__(self, indices: Iterable[SupportsIndex]) -> "Rows":
        """Returns many rows by one request. A DataLoader calls this for a batch.

        Raises:
            IndexError: there is no such row.
        """
        current = self._current_indices()
        return Rows(self._bins([current.find(as_index(index)) for index in indices]), self._rows_of)

    def _getitems(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Returns many rows as a list; Grain calls this to read many records at once."""
        return list(self.__getitems__(indices))

    def collate(self, rows: "Rows") -> Batch:
        """Makes one batch of the bins that `__getitems__` returned. Pass it to a DataLoader as `collate_fn`.

        The batch is as PackedDataset yields it, but without a cursor: with `layout`, `cu_seqlens` and `ids`, or with
        the preset's keys. A worker sends it as one block of memory.

        Example:
            >>> bins = PackedBins("embedded:datasets", "corpus", "corpus.idx", seed=1, preset="padding-free")
            >>> from torch.utils.data import DataLoader
            >>> loader = DataLoader(bins, batch_size=2, collate_fn=bins.collate)
            >>> next(iter(loader))["cu_seq_lens_q"].tolist()
            [0, 5, 8, 13, 16]

        Raises:
            ValueError: `rows` are not the object that `__getitems__` returned.
        """
        if not isinstance(rows, Rows):
            raise ValueError(
                "collate takes what bins.__getitems__ returned, whole; give bins itself (or a Subset of it) to the "
                "DataLoader with batch_size, and Hugging Face's Trainer remove_unused_columns=False"
            )
        return self._maker.convert(self._assemble(rows.bins))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields every row in order."""
        for index in range(len(self)):
            yield self[index]

    def __repr__(self) -> str:
        """Returns the dataset and its order, without the server: Grain compares this text with a checkpoint's."""
        facts = [str(self.run), f"epoch={self.epoch}", f"num_epochs={self.num_epochs}"]
        if self.num_bins_multiple_of > 1:
            facts.append(f"num_bins_multiple_of={self.num_bins_multiple_of}")
        return f"PackedBins({', '.join(facts)})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last_opened": None, "_locks": {}}

    def _rows_of(self, bins: BinBlock) -> list[dict[str, Any]]:
        """Makes one row of each bin.

        Raises:
            ValueError: the preset lays the bins of a batch end to end, or has keys that belong to a batch as a whole.
        """
        refuse_whole_batches(self._maker.preset, is_flat=self._maker.form.is_flat)
        batch = self._assemble(bins)
        return cut_rows(batch, self._maker.preset, bins.positions, as_numpy=self._output == "numpy")

    def _assemble(self, bins: BinBlock) -> PackedBatch:
        """Makes one batch of bins; prepares the maker at this process's first call."""
        opened = self._opened()
        with opened.assembling:  # one thread at a time: a source may hold state between its calls for one batch
            if not opened.is_prepared:
                self._maker.prepare(self._current_indices().headers[0])
                opened.is_prepared = True
            return self._maker.assemble(bins)

    def _bins(self, addresses: Sequence[BinAddress]) -> BinBlock:
        """Returns the bins at some addresses, in their order: by one request if they are in one epoch.

        Adjacent addresses in one epoch are one request; an epoch's empty bins are not requested.
        """
        blocks = []
        for (epoch, is_empty), run in groupby(addresses, key=lambda address: (address.epoch, address.is_empty)):
            adjacent = list(run)
            if is_empty:
                blocks.append(_NO_BINS.padded(len(adjacent)))
            else:
                read_ahead = self._opened().reader.bins_of_epoch(epoch, adjacent[0].header)
                blocks.append(read_ahead.bins([address.position for address in adjacent]))
        return joined(blocks or [_NO_BINS])

    def _current_indices(self) -> Indices:
        """Returns the meaning of indices; made again after another epoch or cursor was chosen."""
        choice = self._progress.choice
        if self._indices is None or self._indices.choice != choice:
            with self._lock:
                resume = self._progress.next
                later = (resume.at_epoch(resume.epoch + number) for number in range(1, self.num_epochs))
                headers = [self._headers.header(begin, self._connection_to_ask) for begin in (resume, *later)]
                self._indices = Indices(choice, resume, headers, self.num_bins_multiple_of)
        return self._indices

    def _connection_to_ask(self) -> Client | None:
        """Returns this process's connection, if it is a worker or has read bins; None if a child process must ask.

        A child process asks so that this process may fork workers, which after a connection it should not.
        """
        if self._opened_before() is None and get_worker_info() is None:
            return None
        return self._opened().reader.client

    def _opened(self) -> _Opened:
        """Returns what this process has opened; opens it at the first call, and again after a fork."""
        opened = self._opened_before()
        if opened is None:
            with self._lock:
                opened = self._opened_before()
                if opened is None:
                    opened = self._last_opened = self._open()
        return opened

    def _opened_before(self) -> _Opened | None:
        """Returns what this process has opened; None if it has not, although its parent may have before a fork."""
        opened = self._last_opened
        return opened if opened is not None and opened.pid == os.getpid() else None

    def _open(self) -> _Opened:
        """Opens this process's connection; a worker also prepares for a preemption."""
        if get_worker_info() is not None:
            outlive_preemption(lambda: self._progress.is_exiting)
        client = self._server.open()
        reader = BinsReader(client, self.run, self._getitems, self._lock, with_tokens=self._maker.wants_tokens)
        return _Opened(os.getpid(), reader)

    @property
    def _lock(self) -> threading.RLock:
        """The lock of this process."""
        return self._locks.setdefault(os.getpid(), threading.RLock())
