"""The rows of a part of the input, tokenized into the part's token files with a loss mask.

Owns which rows are left out, and the counts. Leaves reading rows to `input/rows`, turning a row into sequences to
`encoding/row_encoder`, dividing the input into parts to `_work`, and joining them to `fine_tuning`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from packhorse.formats.file_stamp import FileStamp
from packhorse.parameters import message_of, parameter
from packhorse.sft import ChatTokenizer, EncodedSequence, MaskedTokenWriter, NoTargetsError, load_chat_tokenizer
from packhorse.sft.tokenizer_loading import tokenizer_json_path
from packhorse.tokenize.columns import AnyColumns
from packhorse.tokenize.encoding.row_encoder import Item, RowEncoder
from packhorse.tokenize.encoding.row_forms import row_encoder
from packhorse.tokenize.encoding.tokenizers import checksum_of, tokenizer_files
from packhorse.tokenize.input.ranges import FileRange
from packhorse.tokenize.input.rows import Row, rows_of
from packhorse.tokenize.input.skipped import MOST_NAMED, OnBadRow, Skipped, Undecodable
from packhorse.tokenize.input.text_check import TextCheck
from packhorse.tokenize.ledger import open_ledger
from packhorse.tokenize.tally import Tally

NoTargets = Literal["error", "drop"]
"""What happens to a sequence that has no token to train on."""

_Result = TypeVar("_Result")

_BATCH_ROWS = 256
"""Rows that are encoded at once."""
_BEYOND_CUTOFF = "tokens beyond the cutoff"
"""The name under which tokens that the cutoff cut off are counted, among unused fields."""
_SEQUENCES_PER_PREFERENCE = 2
"""Sequences that a row of preferences becomes: the chosen and the rejected answer."""


class _RowItems(NamedTuple):
    """A row, read but not encoded: each item becomes one sequence."""

    origin: object
    """Where the row is; printed, it says the file, and the line or row."""
    items: list[Item]
    """Empty if the row has nothing to train on and such rows are dropped."""


class _RowSequences(NamedTuple):
    """A row, encoded."""

    origin: object
    """As in `_RowItems`."""
    sequences: list[EncodedSequence]
    """One sequence for each item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRecipe:
    """Tokenizes rows with the options of a job; a `_work.Recipe`."""

    columns: AnyColumns
    """The columns of the rows, and their options."""
    tokenizer: Path
    """The tokenizer's file or folder, an absolute path."""
    vocab_size: int
    """Every token id is below it."""
    cutoff_len: int | None
    """The number of tokens to which longer sequences are cut; None cuts nothing."""
    no_targets: NoTargets
    """What happens to a sequence that has no token to train on."""
    undecodable: Undecodable
    """What happens to a line that is not UTF-8."""
    on_bad_row: OnBadRow
    """What happens to a row that cannot be read or encoded."""

    def encoder(self) -> RowEncoder:
        """Returns the encoder of rows; each process loads the tokenizer once."""
        tokenizer = _loaded(self.tokenizer, *map(FileStamp.of, tokenizer_files(self.tokenizer)))
        return row_encoder(self.columns, tokenizer, tokenizer_json_path(self.tokenizer), self.cutoff_len)

    def describe(self) -> dict[str, Any]:
        """Returns everything that shapes the output, as JSON values."""
        columns = asdict(self.columns)
        template = columns.pop("chat_template", None)  # its content counts, not its path
        files = [*tokenizer_files(self.tokenizer), *([template] if template else [])]
        return {
            **columns,
            "tokenizer": checksum_of(files),
            "cutoff_len": self.cutoff_len,
            "no_targets": self.no_targets,
            "undecodable": self.undecodable,
            "on_bad_row": self.on_bad_row,
        }

    def write(self, ranges: Sequence[FileRange], prefix: Path) -> Tally:
        """Encodes the rows of some ranges into the token files of a prefix; see `_work.Recipe`."""
        encoder = self.encoder()
        tally = Tally()
        seen: set[str] = set()  # the optional columns that rows have, which `rows_of` adds
        with (
            MaskedTokenWriter(prefix, vocab_size=self.vocab_size, overwrite=True) as writer,
            open_ledger(prefix) as ledger,
        ):
            skipped = Skipped(ledger=ledger)
            check = TextCheck(undecodable=self.undecodable, skipped=skipped, on_bad_row=self.on_bad_row)
            rows = chain.from_iterable(
                rows_of(source, encoder.required, encoder.optional, check, seen) for source in ranges
            )
            for origin, sequences in self._encoded(encoder, rows, check, tally):
                if not self._is_left_out(origin, sequences, skipped, tally):
                    for encoded in sequences:
                        _write_sequence(origin, encoded, writer, tally)
            if self.on_bad_row == "error":
                skipped.refuse_bad()
            tally.sequences, tally.tokens = len(writer), writer.num_tokens
        tally.skip(skipped)
        tally.seen = sorted(seen)
        return tally

    def _is_left_out(
        self, origin: object, sequences: Sequence[EncodedSequence], skipped: Skipped, tally: Tally
    ) -> bool:
        """Returns whether a row is left out, as too long or without targets; counts and names it if it is."""
        # What the cutoff cannot make fit is never trained on, so it is dropped as a sequence without targets is.
        drops_long = self.columns.cutoff == "drop" or self.no_targets == "drop"
        if drops_long and any(encoded.is_too_long for encoded in sequences):
            tally.too_long += len(sequences)
            skipped.leave_out("too_long", origin)
            tally.too_long_named = [*tally.too_long_named, str(origin)][:MOST_NAMED]
            return True
        # Only a preference can have no sequences: if its two answers are the same, it is not encoded.
        has_targets = bool(sequences) and all(encoded.num_trained_tokens for encoded in sequences)
        if self.no_targets == "drop" and not has_targets:
            tally.drop(origin, len(sequences) or _SEQUENCES_PER_PREFERENCE)
            skipped.leave_out("no_targets", origin)
            return True
        return False

    def _read(self, encoder: RowEncoder, row: Row) -> list[Item]:
        """Returns a row's items; none if it has nothing to train on and such rows are dropped."""
        try:
            return _call_naming_row(row.origin, encoder.read, *row.values)
        except NoTargetsError:
            if self.no_targets == "error":
                raise
            return []

    def _encoded(
        self, encoder: RowEncoder, rows: Iterable[Row], check: TextCheck, tally: Tally
    ) -> Iterator[_RowSequences]:
        """Yields the sequences of each row that is not empty or bad; encodes batch by batch."""
        batch: list[_RowItems] = []
        for row in rows:
            required_values = row.values[: len(encoder.required)]
            if any(value is None or value == [] for value in required_values):
                check.skipped.leave_out_empty(row.origin)
                continue
            try:
                items = self._read(encoder, row)
                unused = _call_naming_row(row.origin, encoder.unused, items, row.others)
                special_texts = _call_naming_row(row.origin, encoder.special_texts, items)
            except NoTargetsError:  # a ValueError too, but not a bad row
                raise
            except ValueError as error:
                check.bad(row.origin, message_of(error))
                continue
            for text in special_texts:
                tally.special[text] = tally.special.get(text, 0) + 1
            for name, count in unused.items():
                # Only a field's first row is named: to print an origin, the lines before it are counted.
                first = "" if name in tally.unused else str(row.origin)
                tally.note_unused(name, rows=1, values=count, first=first)
            batch.append(_RowItems(row.origin, items))
            if len(batch) >= _BATCH_ROWS:
                yield from _encoded_batch(encoder, batch, tally)
                batch = []
        yield from _encoded_batch(encoder, batch, tally)


def _write_sequence(origin: object, encoded: EncodedSequence, writer: MaskedTokenWriter, tally: Tally) -> None:
    """Writes and counts a sequence of a row; refuses one without a token to train on."""
    _call_naming_row(origin, encoded.check_targets)
    if encoded.num_open_turns:
        tally.open_turns += encoded.num_open_turns
        turn_text = f" ({encoded.open_turn!r})" if encoded.open_turn else ""
        tally.open_named = [*tally.open_named, f"{origin}{turn_text}"][:MOST_NAMED]
    writer.append(encoded.input_ids, encoded.loss_mask)
    tally.longest = max(tally.longest, len(encoded))
    if encoded.num_cut_tokens:
        tally.cut_sequences += 1
        tally.cut_tokens += encoded.num_cut_tokens
        tally.note_unused(_BEYOND_CUTOFF, rows=1, values=encoded.num_cut_tokens, first=str(origin))


@lru_cache(maxsize=1)
def _loaded(path: Path, *stamps: FileStamp) -> ChatTokenizer:
    """Loads a tokenizer for chats; `stamps` of its files make the cache miss after a change."""
    return load_chat_tokenizer(path)


def _encoded_batch(encoder: RowEncoder, batch: Sequence[_RowItems], tally: Tally) -> Iterator[_RowSequences]:
    """Encodes a batch of rows at once, and returns the sequences of each row."""
    items = [item for row in batch for item in row.items]
    sequences = encoder.encode(items)
    tally.unknown += encoder.num_unknown(items, sequences)
    remaining = iter(sequences)
    return (_RowSequences(row.origin, list(islice(remaining, len(row.items)))) for row in batch)


def _call_naming_row(origin: object, function: Callable[..., _Result], *args: Any) -> _Result:
    """Calls a function; its errors name the row, by its origin."""
    try:
        return function(*args)
    except NoTargetsError as error:
        raise NoTargetsError(f"{origin}: " + message_of(error) + " (" + parameter("no_targets", "drop") + ")") from None
    except ValueError as error:
        raise ValueError(f"{origin}: " + message_of(error)) from error
