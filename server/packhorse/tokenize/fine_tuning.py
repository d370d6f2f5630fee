"""From chats, prompt/response pairs and preferences to token files with a loss mask.

Owns the order of the work, and the summary. Leaves tokenizing the rows of a part, and which rows are left out, to
`_row_recipe`, the options of each form to `columns`, and writing files to `packhorse.sft`. Plain text is in `text`.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, get_args

from packhorse.formats.megatron import masked_paths
from packhorse.jobs import Execution, show_progress
from packhorse.parameters import parameter
from packhorse.sft import MaskedTokenWriter
from packhorse.sft.tokenizer_loading import tokenizer_json_path
from packhorse.storage import refuse_existing
from packhorse.tokenize._execution import check_execution, paths_of
from packhorse.tokenize._output import checked_idx_path, remove_stale, saved_tokenizer_path, tokenizer_outputs
from packhorse.tokenize._row_recipe import NoTargets, RowRecipe
from packhorse.tokenize._work import Job, may_replace, open_work
from packhorse.tokenize.columns import AnyColumns, PreferenceColumns
from packhorse.tokenize.encoding.row_encoder import RowEncoder
from packhorse.tokenize.encoding.tokenizers import (
    content_to_save,
    find_eos,
    id_limit,
    load_tokenizer,
    save_tokenizer,
)
from packhorse.tokenize.input.files import Found, listed
from packhorse.tokenize.input.parts import cut_into_parts, whole_files
from packhorse.tokenize.input.rows import row_files
from packhorse.tokenize.input.skipped import OnBadRow, Undecodable
from packhorse.tokenize.ledger import join_ledgers, write_unused
from packhorse.tokenize.origins import write_rows_file
from packhorse.tokenize.tally import Tally


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
    """Sequences that do not fit the cutoff, left out by `cutoff="drop"` or `no_targets="drop"`."""
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
    used_tokenizer = _UsedTokenizer.checked(output, Path(tokenizer), overwrite=overwrite)
    recipe = RowRecipe(
        columns=columns,
        tokenizer=Path(tokenizer).absolute(),
        vocab_size=id_limit(used_tokenizer.model),
        cutoff_len=cutoff_len,
        no_targets=no_targets,
        undecodable=undecodable,
        on_bad_row=on_bad_row,
    )
    encoder = recipe.encoder()  # wrong columns or a wrong template fail before any work
    found = row_files(sources)
    job = Job(files=whole_files(found.files), options=recipe.describe())
    # Parquet is cut between row groups in any case; .json and Arrow are read whole.
    parts = cut_into_parts(job.files, lambda kind: "line" if kind == "JSON lines" else None)
    with (
        show_progress(quiet=not execution.progress) as progress,
        open_work(output, job, resume=execution.resume, overwrite=overwrite) as work,
    ):
        tally = work.write_parts(parts, recipe, execution, progress)
        with MaskedTokenWriter(output, vocab_size=recipe.vocab_size, overwrite=overwrite) as writer:
            for number in progress.track(range(len(parts)), "joining", len(parts), "parts"):
                writer.extend(work.prefix(number))
            _refuse_empty_output(job, encoder, tally)
            write_unused(output, sequences=tally.sequences, open_turns=tally.open_turns, unused=tally.unused)
            write_rows_file(output, sources, columns, recipe.tokenizer, cutoff_len)
            used_tokenizer.save(columns)
        ledger = join_ledgers(output, list(map(work.prefix, range(len(parts)))))
        remove_stale(output, keeps_mask=True)
    return _summary(used_tokenizer, recipe, writer, tally, found, ledger)


@dataclass(frozen=True, slots=True, kw_only=True)
class _UsedTokenizer:
    """The tokenizer to use, and its copy beside the output."""

    given: Path
    """The path of the user's tokenizer.json."""
    saved: Path
    """The path of the copy."""
    is_in_place: bool
    """Whether both are the same file, so that nothing is saved."""
    model: Any
    """The loaded `tokenizers.Tokenizer`."""

    @classmethod
    def checked(cls, output: str | os.PathLike[str], tokenizer: Path, *, overwrite: bool) -> Self:
        """Loads the tokenizer, and refuses an output that cannot be written, before any work."""
        checked_idx_path(output)
        given = tokenizer_json_path(tokenizer)
        to_write = tokenizer_outputs(output, given)  # none if the tokenizer is in its place already
        refuse_existing([*masked_paths(output), *to_write], overwrite=overwrite)
        saved = saved_tokenizer_path(output)
        return cls(given=given, saved=saved, is_in_place=not to_write, model=load_tokenizer(given))

    def save(self, columns: AnyColumns) -> None:
        """Saves the tokenizer beside the output; its end-of-sequence token is that of `columns`, or else its own."""
        if self.is_in_place:
            return
        eos = columns.eos if isinstance(columns.eos, str) else find_eos(self.model, self.given)
        splits_special = self.model.encode_special_tokens
        save_tokenizer(self.saved, content_to_save(self.given), eos=eos, split_special_tokens=splits_special)


def _refuse_empty_output(job: Job, encoder: RowEncoder, tally: Tally) -> None:
    """Refuses an input without any sequence, or in which no row has an optional column that the user named."""
    never_seen = set(encoder.named) - set(tally.seen)
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
    used_tokenizer: _UsedTokenizer,
    recipe: RowRecipe,
    writer: MaskedTokenWriter,
    tally: Tally,
    found: Found,
    ledger: Path | None,
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
        tokenizer_path=used_tokenizer.saved,
        skipped_path=ledger,
    )
