"""Packing without a dataset, sequences as they arrive (PackStream).

Owns the checks and limits of one stream, and its answers. Leaves the packing to `packhorse.packing`, and the time at
which bins are sent to `rounds`.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch import Bins
from packhorse.packing import MAX_SEQ_LEN, OnlineBin, OnlineItem, OnlinePacker
from packhorse.server.base.faults import invalid_field, too_large
from packhorse.server.base.time_slices import Pace, TimeSlices, finish
from packhorse.server.methods import requests
from packhorse.server.methods.messages import encode
from packhorse.server.methods.on_demand.bins_of_ranks import check_costs, ranks_of
from packhorse.server.methods.on_demand.pack import caps_of
from packhorse.server.methods.on_demand.rounds import Rounds
from packhorse.topology import LEAST_EXTRA_TOKENS, Topology
from packhorse.v1 import packing_pb2 as pb

MAX_STREAM_SEQUENCES = 100_000
"""Most sequences in one message of a PackStream."""

MAX_STREAM_SECONDS = 120.0
"""Processor time that one message of a PackStream may take. Each sequence may make a bin leave, and a bin takes up to
25 ms if the look-ahead is large and nothing fills it. Messages of 1,000 sequences take far less."""

_BYTES_PER_SEQUENCE = 200
"""Bytes of memory that are counted for each sequence of a message, or of a round that is not full, until the response
was sent. It is between the 400 of a sequence that is packed by itself and the 100 of one in a group of 8."""

MAX_LOOKAHEAD_SEQUENCES = 10_000
"""Most sequences that a PackStream may hold back in its look-ahead, because they take memory of the server."""


class PackSession:
    """One PackStream: its options, the sequences of its look-ahead, and the bins of a round that is not full."""

    def __init__(self) -> None:
        self._packer: OnlinePacker | None = None  # None until the options came, which replace the two below as well
        self._options = pb.PackStreamOptions()
        self._rounds = Rounds(Topology(), np.zeros(0, dtype=np.int64))
        self._version = 0  # the policy's newest version so far, as messages or sequences gave it

    def answer(self, request: pb.PackStreamRequest) -> pb.PackStreamResponse:
        """Takes one message and returns its response.

        Raises:
            ServiceError: see `answer_in_slices`.
        """
        return finish(self.answer_in_slices(request))

    def answer_in_slices(self, request: pb.PackStreamRequest) -> TimeSlices[pb.PackStreamResponse]:
        """As `answer`, in time slices: one bin takes up to 25 ms, and each sequence may make one leave.

        Raises:
            ServiceError: the message is out of order or a field is out of range, and the session is unchanged; or it
                took more than MAX_STREAM_SECONDS, or a round's bins hold too many sequences, or the last ones too few,
                after any of which the session must not go on.
        """
        payload = request.WhichOneof("payload")
        if (payload == "options") != (self._packer is None):
            raise invalid_field("payload", "options must be a stream's first message, and come once")
        if payload == "options":
            packer = _packer(request.options)
            rounds = _rounds(request.options, packer.capacities)
            # Only now: both calls may refuse the options, and then the session is unchanged.
            self._packer, self._rounds, self._options = packer, rounds, request.options
            return self._response([], [])
        assert self._packer is not None
        if payload == "sequences":
            bins, evicted = yield from self._add(self._packer, request.sequences)
            return self._response(bins, evicted)
        if payload == "flush":
            self._version = self._version_after(request.flush, "flush")
            bins, evicted = self._evict(self._packer)
            return self._response(bins + self._rounds.flush(self._packer.flush()), evicted)
        raise invalid_field("payload", "a message must hold options, sequences or flush")

    def _add(
        self, packer: OnlinePacker, sequences: pb.PackStreamSequences
    ) -> TimeSlices[tuple[list[OnlineBin], list[int]]]:
        """Packs the sequences of a message; returns the bins that leave, and the ids that were removed as too old.

        The whole message is checked, and all its items are made, before the session changes. So a message with a wrong
        field changes nothing.
        """
        num_sequences = len(sequences.ids)
        if len(sequences.lengths) != num_sequences:
            raise invalid_field(
                "sequences.lengths", f"sequences.lengths holds {len(sequences.lengths)} for {num_sequences} ids"
            )
        if num_sequences > MAX_STREAM_SEQUENCES:
            raise too_large(
                "sequences.ids",
                MAX_STREAM_SEQUENCES,
                f"sequences.ids holds {num_sequences}; send at most {MAX_STREAM_SEQUENCES} in a message",
            )
        for length in set(sequences.lengths):
            try:
                packer.room_of(length)
            except ValueError as error:
                raise invalid_field("sequences.lengths", str(error)) from None
        version = self._version_with(sequences)
        pace = Pace()
        items: list[OnlineItem] = []
        for item in self._items(packer, sequences):
            items.append(item)
            if pace.is_over():
                yield from self._next_slice(pace, num_sequences)
        self._version = version  # the first change of the session; from here on `_oldest` is of the new version
        bins, evicted = self._evict(packer)
        num_packed = 0
        for item in items:
            num_packed += len(item.ids)
            leaving, stale = self._pack(packer, item)
            bins += leaving
            evicted += stale
            if pace.is_over():
                if pace.used_seconds > MAX_STREAM_SECONDS:
                    raise too_large(
                        "sequences.ids",
                        num_packed,
                        f"sequences.ids holds {num_sequences}, of which {num_packed} took {MAX_STREAM_SECONDS:g} "
                        "seconds of a processor, the most for one message; send fewer in a message, or ask for fewer "
                        "lookahead_sequences",
                    )
                yield from self._next_slice(pace, num_sequences)
        for more in self._leaving_in_time(packer):
            bins += more
            if pace.is_over():
                yield from self._next_slice(pace, num_sequences)
        return bins, evicted

    def _next_slice(self, pace: Pace, num_sequences: int) -> TimeSlices[None]:
        """Ends a time slice and begins the next one, while a message of `num_sequences` is packed.

        As every slice does, it yields how many bytes of memory the work needs: here those of session and message.
        """
        yield _BYTES_PER_SEQUENCE * (num_sequences + self._rounds.num_sequences)
        pace.restart()

    def _leaving_in_time(self, packer: OnlinePacker) -> Iterator[list[OnlineBin]]:
        """Yields bins whose sequences the policy's next version would make too old, so that none is lost by waiting.

        A round that holds one of them is filled up from the look-ahead.
        """
        if not self._options.HasField("max_staleness"):
            return
        while (leaving := packer.next_bin(up_to=self._oldest)) is not None:
            yield self._rounds.add([leaving])
        while self._rounds.holds_version_up_to(self._oldest) and (leaving := packer.next_bin()) is not None:
            yield self._rounds.add([leaving])

    def _items(self, packer: OnlinePacker, sequences: pb.PackStreamSequences) -> Iterator[OnlineItem]:
        """Yields a message's items, each a group or a sequence; raises a ServiceError if one cannot be packed."""
        num_budgets, num_sequences = len(self._options.budgets), len(sequences.ids)
        if len(sequences.amounts) != num_budgets * num_sequences:
            raise invalid_field(
                "sequences.amounts",
                f"sequences.amounts holds {len(sequences.amounts)} numbers for {num_sequences} ids and "
                f"{num_budgets} budgets",
            )
        by_budget = np.array(sequences.amounts, dtype=np.int64).reshape(num_budgets, num_sequences)
        amounts = by_budget.T.tolist()  # of each sequence: one for each budget
        for members in _members(sequences):
            ids = [sequences.ids[i] for i in members]
            try:
                yield packer.item(
                    ids,
                    [sequences.lengths[i] for i in members],
                    [amounts[i] for i in members] if num_budgets else [],
                    [sequences.versions[i] for i in members] if len(sequences.versions) else [],
                )
            except ValueError as error:
                if len(members) > 1:
                    field, name = "sequences.groups", f"group {sequences.groups[members[0]]}"
                else:
                    field, name = "sequences.amounts", f"sequence {ids[0]}"
                raise invalid_field(field, f"{field}: {name}: {error}") from None

    def _version_with(self, sequences: pb.PackStreamSequences) -> int:
        """Returns the policy's version after a message of sequences, and checks their versions.

        Raises a ServiceError if the policy's version goes back, or if versions are missing, not needed, or newer than
        the policy's.
        """
        ids, versions = sequences.ids, sequences.versions
        has_versions = self._options.HasField("max_staleness") or self._options.separate_versions
        if len(versions) != (len(ids) if has_versions else 0):
            raise invalid_field(
                "sequences.versions",
                f"sequences.versions holds {len(versions)} numbers for {len(ids)} ids: a stream with max_staleness or "
                "separate_versions needs one for each, and another takes none",
            )
        if min(versions, default=0) < 0:
            raise invalid_field("sequences.versions", "sequences.versions must be at least 0")
        version = self._version_after(sequences, "sequences")
        if not sequences.HasField("policy_version"):
            return max(version, *versions, 0)  # a newer sequence shows that the policy has moved on
        if max(versions, default=0) > version:
            index = int(np.argmax(np.array(versions) > version))
            raise invalid_field(
                "sequences.versions",
                f"sequences.versions: sequence {ids[index]} is of version {versions[index]}, newer than "
                f"policy_version {version}",
            )
        return version

    def _version_after(self, message: pb.PackStreamSequences | pb.PackStreamFlush, within: str) -> int:
        """Returns the policy's version that a message gives, or else the newest so far; refuses one that goes back.

        `within` is the message's name in errors.
        """
        if not message.HasField("policy_version"):
            return self._version
        version = requests.integer(f"{within}.policy_version", message.policy_version, 0)
        if version < self._version:
            raise invalid_field(
                f"{within}.policy_version",
                f"{within}.policy_version {version} goes back: the stream has seen {self._version}",
            )
        return version

    def _evict(self, packer: OnlinePacker) -> tuple[list[OnlineBin], list[int]]:
        """Removes the sequences that are too old now, from the look-ahead and from held bins.

        The other sequences of these bins are packed again. Returns the bins that leave because of that, and the removed
        ids.
        """
        if not self._options.HasField("max_staleness"):
            return [], []
        evicted = packer.evict(self._oldest, whole_groups=self._options.evict_groups)
        bins: list[OnlineBin] = []
        for item in self._rounds.take_stale(self._oldest):
            leaving, stale = self._pack(packer, item)
            bins += leaving
            evicted += stale
        return bins, evicted

    @property
    def _oldest(self) -> int:
        """The oldest version of the policy whose sequences may still be packed."""
        return self._version - self._options.max_staleness if self._options.HasField("max_staleness") else 0

    def _pack(self, packer: OnlinePacker, item: OnlineItem) -> tuple[list[OnlineBin], list[int]]:
        """Packs an item without its sequences that are too old; returns the bins that leave, and the removed ids."""
        kept: OnlineItem | None = item
        evicted: list[int] = []
        if min(item.versions, default=self._oldest) < self._oldest:
            kept, evicted = packer.without_stale(item, self._oldest, whole_groups=self._options.evict_groups)
        return self._rounds.add(packer.add_item(kept)) if kept else [], evicted

    def _response(self, bins: list[OnlineBin], evicted: list[int]) -> pb.PackStreamResponse:
        num_held = len(self._packer or ()) + self._rounds.num_sequences
        response = pb.PackStreamResponse(num_sequences_held=num_held, evicted=evicted)
        encode(_laid_end_to_end(bins), response.bins, context=0)  # no header or request is in its checksum
        return response


def _members(sequences: pb.PackStreamSequences) -> Sequence[Sequence[int]]:
    """Returns the indices of the sequences of each item, which is a group or a sequence, in the order of first ones."""
    numbers = sequences.groups
    if len(numbers) not in (0, len(sequences.ids)):
        raise invalid_field(
            "sequences.groups", f"sequences.groups holds {len(numbers)} numbers for {len(sequences.ids)} ids"
        )
    if not numbers:
        return [(index,) for index in range(len(sequences.ids))]
    items: dict[int, list[int]] = {}
    for index, number in enumerate(numbers):
        items.setdefault(number, []).append(index)
    return list(items.values())


def _laid_end_to_end(bins: list[OnlineBin]) -> Bins:
    return Bins(
        ids=np.array([sequence_id for bin_ in bins for sequence_id in bin_.ids], dtype=np.int64),
        lengths=np.array([length for bin_ in bins for length in bin_.lengths], dtype=np.int32),
        bin_ends=np.cumsum([len(bin_.ids) for bin_ in bins], dtype=np.int64),
        positions=np.arange(len(bins)),
    )


def _packer(options: pb.PackStreamOptions) -> OnlinePacker:
    """Returns a stream's packer; raises a ServiceError if an option is out of range."""
    max_seq_len = requests.integer("options.max_seq_len", options.max_seq_len, 1, MAX_SEQ_LEN)
    return OnlinePacker(
        max_seq_len,
        lookahead_sequences=requests.integer(
            "options.lookahead_sequences", options.lookahead_sequences, 1, MAX_LOOKAHEAD_SEQUENCES
        ),
        max_sequences_per_bin=requests.integer("options.max_sequences_per_bin", options.max_sequences_per_bin, 0)
        or None,
        align=requests.integer("options.align", options.align, 0, max_seq_len) or 1,
        extra_tokens=requests.integer(
            "options.extra_tokens", options.extra_tokens, LEAST_EXTRA_TOKENS, max_seq_len - 1
        ),
        caps=caps_of(options.budgets, "options.budgets"),
        separate_versions=options.separate_versions,
    )


def _rounds(options: pb.PackStreamOptions, capacities: NDArray[np.int64]) -> Rounds:
    """Returns a stream's rounds; raises a ServiceError if an option is out of range."""
    ranks = ranks_of(options, within="options.")
    num_tokens = ranks.bins_per_optimizer_step * options.max_seq_len
    check_costs(ranks, num_tokens, options.max_seq_len, within="options.")
    if options.HasField("max_staleness"):
        requests.integer("options.max_staleness", options.max_staleness, 0)
    return Rounds(ranks, capacities, allow_empty=options.allow_empty, separate_versions=options.separate_versions)
