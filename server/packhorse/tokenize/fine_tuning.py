"""From chats, prompt/response pairs and preferences to token files with a loss mask.

Owns the order of the work, which rows are left out, and the summary. Leaves reading rows to `input/rows`, turning a row
into sequences to `_row_encoder`, the options of each form to `columns`, and writing files to `packhorse.sft`. Plain
text is in `text`.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.megatron_writer import masked_paths
from packhorse.jobs import Execution, show_progress
from packhorse.parameters import message_of, parameter
from packhorse.sft import (
    ChatTokenizer,
    EncodedSequence,
    MaskedTokenWriter,
    NoTargetsError,
    load_chat_tokenizer,
)
from packhorse.sft.tokenizer import tokenizer_json_path
from packhorse.storage import refuse_existing
from packhorse.tokenize._output import is_saved, prefix_paths, remove_stale, saved_tokenizer_path
from packhorse.tokenize._row_encoder import RowEncoder
from packhorse.tokenize._row_forms import row_encoder
from packhorse.tokenize._work import Job, check_execution, may_replace, open_work, paths_of
from packhorse.tokenize.columns import AnyColumns, PreferenceColumns
from packhorse.tokenize.encoding.tokenizers import (
    checksum_of,
    content_to_save,
    find_eos,
    id_limit,
    load_tokenizer,
    save_tokenizer,
    settings_path,
    tokenizer_files,
)
from packhorse.tokenize.input.files import Found, listed
from packhorse.tokenize.input.parts import cut_into_parts, whole_files
from packhorse.tokenize.input.ranges import FileRange
from packhorse.tokenize.input.rows import Row, row_files, rows_of
from packhorse.tokenize.input.skipped import MOST_NAMED, OnBadRow, Skipped, Undecodable
from packhorse.tokenize.input.text_check import TextCheck
from packhorse.tokenize.ledger import join_ledgers, open_ledger, write_unused
from packhorse.tokenize.origins import write_rows
from packhorse.tokenize.tally import Tally

NoTargets = Literal["error", "drop"]
"""What happens to a sequence that has no token to train on."""

_Result = TypeVar("_Result")

_BATCH_ROWS = 256
"""Rows that are encoded at once."""
_BEYOND = "tokens beyond the cutoff"
"""The name under which tokens that the cutoff cut off are counted, among unused fields."""
_PAIR = 2
"""Sequences of a row of preferences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningSummary:
    """Counts and paths of tokenizing for fine-tuning."""

    sequences: int
    """Sequences written."""
    tokens: int
    """Tokens written."""
    trained_tokens: int
    """Tokens whose loss mask is 1."""
    longest: int
    """The longest sequence, in tokens."""
    dtype: str
    """Type of a token in `.bin`: "uint16" or "int32"."""
    vocab_size: int
    """Every token id is below it."""
    cut_sequences: int
    """Sequences that the cutoff shortened."""
    cut_tokens: int
    """Tokens that the cutoff cut off."""
    dropped_no_targets: int
    """Sequences without a token to train on, left out."""
    dropped_named: tuple[str, ...]
    """The rows of the first few of these sequences: file, and line or row."""
    dropped_too_long: int
    """Sequences that do not fit the cutoff, left out by `cutoff="drop"`."""
    too_long_named: tuple[str, ...]
    """The rows of the first few of these sequences."""
    open_turns: int
    """Trained turns that no special token ends. A model does not learn from them to end its turn."""
    open_named: tuple[str, ...]
    """The first few rows with such turns."""
    unused: Mapping[str, Mapping[str, Any]]
    """Column, or field of messages, whose values are not in the tokens → {"rows": how many rows, "values": how many
    values, "first": the first such row}."""
    special_in_text: Mapping[str, int]
    """Special token → how often the rows' own texts spell it; each became the token."""
    unknown_characters: int
    """Characters that the tokenizer does not know, dropped or written as its unknown token."""
    skipped_empty: int
    """Rows without messages, or without prompt or response."""
    skipped_undecodable: int
    """Lines that are not UTF-8."""
    undecodable_named: tuple[str, ...]
    """The first few of these lines."""
    skipped_bad: int
    """Rows that cannot be read or encoded, left out."""
    bad_named: tuple[str, ...]
    """The first few of these rows, with what is wrong."""
    files_read: Mapping[str, int]
    """Kind of file ("JSON lines", "Parquet") → how many were read."""
    left_out: tuple[str, ...]
    """Files of documentation and metadata that were not read because they are beside files of rows."""
    idx_path: Path
    """The tokens' index; the `.bin` is beside it."""
    loss_mask_idx_path: Path
    """The loss mask's index; its `.bin` is beside it."""
    tokenizer_path: Path
    """The tokenizer that was used, saved beside the output."""
    skipped_path: Path | None
    """The file that lists every row left out; None if none was."""


def tokenize_fine_tuning(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    columns: AnyColumns,
    *,
    tokenizer: str | os.PathLike[str],
    cutoff_len: int | None = None,
    no_targets: NoTargets = "error",
    undecodable: Undecodable = "skip",
    on_bad_row: OnBadRow = "error",
    execution: Execution | None = None,
    overwrite: bool = False,
) -> FineTuningSummary:
    """Tokenizes rows into `X.bin`, `X.idx` and their loss mask, `X.loss_mask.bin`, `X.loss_mask.idx`.

    Every row becomes one sequence, or two with `PreferenceColumns`, in the order of the inputs. A sequence has the same
    id in the tokens and in the mask. The files appear together or not at all, and have the same bytes for any number of
    workers.

    Example:
        >>> import tempfile
        >>> from packhorse.tokenize import PairColumns, train_tokenizer
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     here = Path(folder)
        ...     tokenizer = train_tokenizer(["2 + 2 = 4"], vocab_size=300)
        ...     tokenizer.save(str(here / "tokenizer.json"))
        ...     _ = (here / "sums.jsonl").write_text('{"question": "2 + 2 =", "answer": " 4"}')
        ...     columns = PairColumns(prompt="question", response="answer", eos="<|endoftext|>")
        ...     summary = tokenize_fine_tuning(here / "sums.jsonl", here / "sums", columns, tokenizer=here)
        >>> summary.sequences, 1 < summary.trained_tokens < summary.tokens
        (1, True)

    Args:
        inputs: files of rows (JSON, Parquet, Arrow), folders and glob patterns of such, or URLs; see
            `iterate_documents`.
        output: the prefix X.
        columns: the form of the rows, with its columns and options.
        tokenizer: a local tokenizer.json, or the folder that holds it with tokenizer_config.json and
            chat_template.jinja.
        cutoff_len: longer sequences are cut to this number of tokens, from their oldest side and never within an
            answer; None cuts nothing.
        no_targets: what happens to a sequence without a token to train on.
        undecodable: what happens to a line that is not UTF-8.
        on_bad_row: what happens to a row that cannot be read or encoded: "skip" leaves it out. Whatever is left out is
            counted, and named in `X.skipped.jsonl`.
        execution: engine, workers and progress; see `tokenize`.
        overwrite: whether to replace existing files.

    Raises:
        FileExistsError: an output is there and overwrite is False.
        FileNotFoundError: an input, the tokenizer or the template is not there.
        ImportError: the extras `packhorse[prepare,sft]` are not installed.
        ValueError: an option is wrong, a row cannot be encoded, there is no row, or with no_targets="error" a row has
            no token to train on.
    """
    if no_targets not in get_args(NoTargets):
        raise ValueError(
            parameter("no_targets") + f" is {no_targets!r}; choose one of {', '.join(get_args(NoTargets))}"
        )
    if cutoff_len is not None and isinstance(columns, PreferenceColumns):
        raise ValueError(
            parameter("cutoff_len")
            + " would cut the prompts of a pair differently; leave it out, and leave long pairs out with "
            + parameter("over_length", "drop")
            + " when you prepare"
        )
    execution = execution or Execution()
    check_execution(execution)
    sources = paths_of(listed(inputs), execution)
    overwrite = may_replace(output, resume=execution.resume, overwrite=overwrite)
    target = _Target.checked(output, Path(tokenizer), overwrite=overwrite)
    recipe = _Recipe(
        columns=columns,
        tokenizer=Path(tokenizer).absolute(),
        vocab_size=id_limit(target.model),
        cutoff_len=cutoff_len,
        no_targets=no_targets,
        undecodable=undecodable,
        on_bad_row=on_bad_row,
    )
    reader = recipe.reader()  # wrong columns or a wrong template fail before any work
    found = row_files(sources)
    job = Job(files=whole_files(found.files), options=recipe.describe())
    parts = cut_into_parts(job.files, lambda kind: "line" if kind == "JSON lines" else None)
    with (
        show_progress(quiet=not execution.progress) as shown,
        open_work(output, job, resume=execution.resume, overwrite=overwrite) as work,
    ):
        tally = work.write_parts(parts, recipe, execution, shown)
        with MaskedTokenWriter(output, vocab_size=recipe.vocab_size, overwrite=overwrite) as writer:
            for number in shown.track(range(len(parts)), "joining", len(parts), "parts"):
                writer.extend(work.prefix(number))
            _refuse_nothing(job, reader, tally)
            write_unused(output, sequences=tally.sequences, open_turns=tally.open_turns, unused=tally.unused)
            write_rows(output, sources, columns, recipe.tokenizer, cutoff_len)
            target.save_tokenizer(columns)
        ledger = join_ledgers(output, list(map(work.prefix, range(len(parts)))))
        remove_stale(output, keeps_mask=True)
    return _summary(target, recipe, writer, tally, found, ledger)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """The tokenizer to use, and where it is saved beside the output."""

    local: Path
    """The user's tokenizer.json."""
    saved: Path
    """Where it is saved."""
    in_place: bool
    """Whether both are the same file."""
    model: Any
    """The loaded `tokenizers.Tokenizer`."""

    @classmethod
    def checked(cls, output: str | os.PathLike[str], tokenizer: Path, *, overwrite: bool) -> Self:
        """Loads the tokenizer, and refuses an output that cannot be written, before any work."""
        prefix_paths(output)
        local, saved = tokenizer_json_path(tokenizer), saved_tokenizer_path(output)
        in_place = is_saved(local, saved)
        kept = [] if in_place else [saved, settings_path(saved)]
        refuse_existing([*masked_paths(output), *kept], overwrite=overwrite)
        return cls(local=local, saved=saved, in_place=in_place, model=load_tokenizer(local))

    def save_tokenizer(self, columns: AnyColumns) -> None:
        """Saves the tokenizer beside the output, with the end-of-sequence token that the columns name."""
        if self.in_place:
            return
        named = getattr(columns, "eos", True)
        eos = named if isinstance(named, str) else find_eos(self.model, self.local)
        split = self.model.encode_special_tokens
        save_tokenizer(self.saved, content_to_save(self.local), eos=eos, split_special_tokens=split)


def _refuse_nothing(job: Job, reader: RowEncoder, tally: Tally) -> None:
    """Refuses an input without any sequence, or in which no row has an optional column that the user named."""
    never_seen = set(reader.named) - set(tally.seen)
    if never_seen:
        where = job.files[0].range.where
        raise ValueError(f"no line of {where} has the key {min(never_seen)!r}; correct its name, or leave it out")
    if not tally.sequences:
        raise ValueError(
            f"there is no sequence in the input: {tally.empty} empty, {tally.undecodable} undecodable and {tally.bad} "
            f"bad rows were skipped, {tally.dropped} without a token to train on and {tally.too_long} too long for the "
            "cutoff dropped; check the paths and the columns" + "".join(f". {fault}" for fault in tally.bad_named[:1])
        )


def _summary(
    target: _Target, recipe: "_Recipe", writer: MaskedTokenWriter, tally: Tally, found: Found, ledger: Path | None
) -> FineTuningSummary:
    """Returns the summary of the files written."""
    return FineTuningSummary(
        sequences=len(writer),
        tokens=writer.num_tokens,
        trained_tokens=writer.num_trained_tokens,
        longest=tally.longest,
        dtype=writer.dtype.name,
        vocab_size=recipe.vocab_size,
        cut_sequences=tally.cut_sequences,
        cut_tokens=tally.cut_tokens,
        dropped_no_targets=tally.dropped,
        dropped_named=tuple(tally.dropped_named),
        dropped_too_long=tally.too_long,
        too_long_named=tuple(tally.too_long_named),
        open_turns=tally.open_turns,
        open_named=tuple(tally.open_named),
        unused=tally.unused,
        special_in_text=tally.special,
        unknown_characters=tally.unknown,
        skipped_empty=tally.empty,
        skipped_undecodable=tally.undecodable,
        undecodable_named=tuple(tally.undecodable_named),
        skipped_bad=tally.bad,
        bad_named=tuple(tally.bad_named),
        files_read=found.num_files,
        left_out=tuple(found.left_out),
        idx_path=writer.idx_path,
        loss_mask_idx_path=writer.loss_mask_idx_path,
        tokenizer_path=target.saved,
        skipped_path=ledger,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """Tokenizes rows with the options of a job; a `_work.Recipe`."""

    columns: AnyColumns
    tokenizer: Path
    vocab_size: int
    cutoff_len: int | None
    no_targets: NoTargets
    undecodable: Undecodable
    on_bad_row: OnBadRow

    def reader(self) -> RowEncoder:
        """Returns the encoder of rows; the tokenizer is loaded once in each process."""
        tokenizer = _loaded(self.tokenizer, *map(FileStamp.of, tokenizer_files(self.tokenizer)))
        return row_encoder(self.columns, tokenizer, tokenizer_json_path(self.tokenizer), self.cutoff_len)

    def describe(self) -> dict[str, Any]:
        """Returns everything that shapes the output, as JSON values."""
        columns = asdict(self.columns)
        template = columns.pop("chat_template", None)
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
        reader = self.reader()
        tally, seen = Tally(), set[str]()
        with (
            MaskedTokenWriter(prefix, vocab_size=self.vocab_size, overwrite=True) as writer,
            open_ledger(prefix) as ledger,
        ):
            skipped = Skipped(ledger=ledger)
            check = TextCheck(self.undecodable, skipped, self.on_bad_row)
            rows = chain.from_iterable(
                rows_of(source, reader.required, reader.optional, check, seen) for source in ranges
            )
            for origin, sequences in self._encoded(reader, rows, check, tally):
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
        """Returns whether a row is left out, as too long or without targets; then it is also counted and named."""
        drops_long = "drop" in (self.columns.cutoff, self.no_targets)
        if drops_long and any(encoded.is_too_long for encoded in sequences):
            tally.too_long += len(sequences)
            skipped.leave_out("too_long", origin)
            tally.too_long_named = [*tally.too_long_named, str(origin)][:MOST_NAMED]
            return True
        if self.no_targets == "drop" and not (sequences and all(each.num_trained_tokens for each in sequences)):
            tally.drop(origin, len(sequences) or _PAIR)
            skipped.leave_out("no_targets", origin)
            return True
        return False

    def _read(self, reader: RowEncoder, row: Row) -> list[Any]:
        """Returns a row's items; none if it has nothing to train on and such rows are dropped."""
        try:
            return _naming(row.origin, reader.read, *row.values)
        except NoTargetsError:
            if self.no_targets == "error":
                raise
            return []

    def _encoded(
        self, reader: RowEncoder, rows: Iterable[Row], check: TextCheck, tally: Tally
    ) -> Iterator[tuple[object, list[EncodedSequence]]]:
        """Yields (file and line, sequences) for each row that is not empty or bad; encodes batch by batch."""
        batch: list[tuple[object, list[Any]]] = []
        for row in rows:
            if any(value is None or value == [] for value in row.values[: len(reader.required)]):
                check.skipped.leave_out_empty(row.origin)
                continue
            try:
                items = self._read(reader, row)
                unused = _naming(row.origin, reader.unused, items, row.others)
                special = _naming(row.origin, reader.special_texts, items)
            except NoTargetsError:
                raise
            except ValueError as error:
                check.bad(row.origin, message_of(error))
                continue
            for text in special:
                tally.special[text] = tally.special.get(text, 0) + 1
            for name, count in unused.items():
                if name in tally.unused:  # then the first row is known, and no line number need be looked up
                    tally.note_unused(name, 1, count, "")
                else:
                    tally.note_unused(name, 1, count, str(row.origin))
            batch.append((row.origin, items))
            if len(batch) >= _BATCH_ROWS:
                yield from _encoded_batch(reader, batch, tally)
                batch = []
        yield from _encoded_batch(reader, batch, tally)


def _write_sequence(origin: object, encoded: EncodedSequence, writer: MaskedTokenWriter, tally: Tally) -> None:
    """Writes and counts a sequence of a row; refuses one without a token to train on."""
    _naming(origin, encoded.check_targets)
    if encoded.num_open_turns:
        tally.open_turns += encoded.num_open_turns
        ending = f" ({encoded.open_turn!r})" if encoded.open_turn else ""
        tally.open_named = [*tally.open_named, f"{origin}{ending}"][:MOST_NAMED]
    writer.append(encoded.input_ids, encoded.loss_mask)
    tally.longest = max(tally.longest, len(encoded))
    tally.cut_sequences += encoded.num_cut_tokens > 0
    tally.cut_tokens += encoded.num_cut_tokens
    if encoded.num_cut_tokens:
        tally.note_unused(_BEYOND, 1, encoded.num_cut_tokens, str(origin))


@lru_cache(maxsize=1)
def _loaded(path: Path, *stamps: FileStamp) -> ChatTokenizer:
    """Loads a tokenizer for chats; `stamps` of its files make the cache miss after a change."""
    return load_chat_tokenizer(path)


def _encoded_batch(
    reader: RowEncoder, batch: Sequence[tuple[object, list[Any]]], tally: Tally
) -> Iterator[tuple[object, list[EncodedSequence]]]:
    """Encodes a batch of (file and line, items); yields (file and line, sequences) for each row."""
    items = [item for _, items in batch for item in items]
    sequences = reader.encode(items)
    tally.unknown += reader.num_unknown(items, sequences)
    encoded = iter(sequences)
    return ((origin, [next(encoded) for _ in items]) for origin, items in batch)


def _naming(origin: object, function: Callable[..., _Result], *args: Any) -> _Result:
    """Calls a function; names the row, which is `origin`, in its errors."""
    try:
        return function(*args)
    except NoTargetsError as error:
        raise NoTargetsError(f"{origin}: " + message_of(error) + " (" + parameter("no_targets", "drop") + ")") from None
    except ValueError as error:
        raise ValueError(f"{origin}: " + message_of(error)) from error
