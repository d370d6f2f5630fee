"""Chats and prompt/response pairs to token files with a loss mask.

Owns the way from rows to files and its summary; leaves rows to `_rows`, encoding and the files to `packhorse.sft`.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from packhorse.formats.atomic import refuse_existing
from packhorse.formats.files import FileStamp
from packhorse.jobs import EngineKind, show_progress
from packhorse.sft import (
    ChatEncoder,
    ChatTokenizer,
    EncodedSequence,
    MaskedTokenWriter,
    NoTargetsError,
    PairEncoder,
    load_chat_tokenizer,
)
from packhorse.sft.messages import Turns
from packhorse.sft.pairs import check_pair
from packhorse.sft.tokenizer import tokenizer_json_path
from packhorse.sft.writer import masked_paths
from packhorse.tokenize._inputs import listed
from packhorse.tokenize._output import is_saved, prefix_paths, saved_tokenizer_path
from packhorse.tokenize._parts import cut_into_parts, whole_files
from packhorse.tokenize._rows import Row, row_files, rows_of
from packhorse.tokenize._spans import Span
from packhorse.tokenize._tally import Tally
from packhorse.tokenize._work import Job, RunsOn, open_work
from packhorse.tokenize.gate import Gate, Skipped, Undecodable
from packhorse.tokenize.tokenizers import (
    end_of_sequence,
    find_eos,
    fingerprint,
    id_limit,
    load_tokenizer,
    save_tokenizer,
    settings_path,
    tokenizer_files,
)

NoTargets = Literal["error", "drop"]
"""What happens to a sequence that has no token to train on."""

_Result = TypeVar("_Result")

_BATCH_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatColumns:
    """Rows that hold conversations."""

    messages: str = "messages"
    """Column of the messages: a list, or its JSON text; ShareGPT's form is known too."""
    tools: str | None = None
    """Column of the tools that a conversation may call: a list of JSON schemas, or its JSON text."""
    chat_template: Path | None = None
    """File with the template; None for the tokenizer's own."""
    train_turns: Turns = "all"
    """All turns of the assistant are trained on, or the last one."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """What else the template sees, such as `{"enable_thinking": False}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairColumns:
    """Rows that hold a prompt and a response."""

    prompt: str
    """Column of the prompt."""
    response: str
    """Column of the response."""
    eos: bool | str = True
    """Whether the end-of-sequence token follows the response: the tokenizer's own, or the one named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningSummary:
    """What tokenizing for fine-tuning wrote."""

    sequences: int
    """Sequences written."""
    tokens: int
    """Tokens written."""
    trained_tokens: int
    """Those whose loss mask is 1."""
    longest: int
    """The longest sequence, in tokens."""
    dtype: str
    """Type of a token in `.bin`: "uint16" or "int32"."""
    vocab_size: int
    """Every token id is below it."""
    cut_sequences: int
    """Sequences that the cutoff shortened."""
    cut_tokens: int
    """Tokens that it left out of them."""
    dropped_no_targets: int
    """Sequences without a token to train on, left out."""
    dropped_named: tuple[str, ...]
    """The first few of those: file, and line or row."""
    skipped_empty: int
    """Rows without messages, or without prompt or response."""
    skipped_undecodable: int
    """Lines that are not UTF-8."""
    undecodable_named: tuple[str, ...]
    """The first few of those."""
    files_read: Mapping[str, int]
    """Kind of file ("JSON lines", "Parquet") → how many were read."""
    left_out: tuple[str, ...]
    """Documentation and metadata that lies beside files of rows."""
    idx_path: Path
    """The tokens' index; the `.bin` stands beside it."""
    loss_mask_idx_path: Path
    """The loss mask's index; its `.bin` stands beside it."""
    tokenizer_path: Path
    """The tokenizer that was used, saved beside the output."""


def tokenize_fine_tuning(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    columns: ChatColumns | PairColumns,
    *,
    tokenizer: str | os.PathLike[str],
    cutoff_len: int | None = None,
    no_targets: NoTargets = "error",
    undecodable: Undecodable = "skip",
    engine: EngineKind = "processes",
    workers: int | None = None,
    ray_address: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> FineTuningSummary:
    """Tokenizes rows into `X.bin`, `X.idx` and their loss mask, `X.loss_mask.bin`, `X.loss_mask.idx`.

    Every row becomes one sequence, with the same id in both, in the order of the inputs. There are either both pairs or
    none, the same byte by byte for any number of workers.

    Example:
        >>> import tempfile
        >>> from packhorse.tokenize import train_tokenizer
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
        columns: what the rows hold.
        tokenizer: a local tokenizer.json, or the folder that holds it with tokenizer_config.json and
            chat_template.jinja.
        cutoff_len: longer sequences are cut to it, balancing prompts and responses; None cuts nothing.
        no_targets: what happens to a sequence without a token to train on.
        undecodable: what happens to a line that is not UTF-8.
        engine: where the work is done; see `packhorse.tokenize.tokenize`, like the next two.
        workers: processes to tokenize with.
        ray_address: of the cluster.
        resume: whether an interrupted run is gone on with; see there.
        overwrite: whether files already there are replaced.
        progress: whether stderr shows how far it is.

    Raises:
        FileExistsError: an output is there and overwrite is False.
        FileNotFoundError: an input, the tokenizer or the template is not there.
        ImportError: the extras `packhorse[prepare,sft]` are not installed.
        ValueError: an option is wrong, a row cannot be encoded or, with "error", trains on nothing, or there is no row.
    """
    if no_targets not in get_args(NoTargets):
        raise ValueError(f"no_targets is {no_targets!r}; choose one of {', '.join(get_args(NoTargets))}")
    runs_on = RunsOn(engine=engine, workers=workers, ray_address=ray_address)
    sources = runs_on.paths(listed(inputs))
    prefix_paths(output)
    local, saved = tokenizer_json_path(Path(tokenizer)), saved_tokenizer_path(output)
    in_place = is_saved(local, saved)
    kept = [] if in_place else [saved, settings_path(saved)]
    refuse_existing([*masked_paths(output), *kept], overwrite=overwrite)
    plain = load_tokenizer(local)
    eos = find_eos(plain, local)
    if isinstance(columns, PairColumns) and columns.eos:
        eos = end_of_sequence(plain, local) if columns.eos is True else columns.eos
        columns = replace(columns, eos=eos)
    recipe = _Recipe(
        columns=columns,
        tokenizer=Path(tokenizer).absolute(),
        vocab_size=id_limit(plain),
        cutoff_len=cutoff_len,
        no_targets=no_targets,
        undecodable=undecodable,
    )
    reader = recipe.reader()  # what is wrong with the columns or the template is said before any work
    found = row_files(sources)
    job = Job(files=whole_files(found.files), options=recipe.describe())
    parts = cut_into_parts(job.files, lambda kind: "line" if kind == "JSON lines" else None)
    with (
        show_progress(quiet=not progress) as shown,
        open_work(output, job, resume=resume, overwrite=overwrite) as work,
    ):
        tally = work.write_parts(parts, recipe, runs_on=runs_on, progress=shown)
        with MaskedTokenWriter(output, vocab_size=recipe.vocab_size, overwrite=overwrite) as writer:
            for number in shown.track(range(len(parts)), "joining", len(parts), "parts"):
                writer.extend(work.prefix(number))
            never_seen = set(reader.optional) - set(tally.seen)
            if never_seen:
                raise ValueError(
                    f"no line of {job.files[0].span.where} has the key {min(never_seen)!r}; correct its name, or leave "
                    "it out"
                )
            if not len(writer):
                raise ValueError(
                    f"there is no sequence in the input: {tally.empty} empty and {tally.undecodable} undecodable rows "
                    f"were skipped, {tally.dropped} without a token to train on dropped; check the paths and the "
                    "columns"
                )
            if not in_place:
                save_tokenizer(saved, local.read_bytes(), eos=eos, split_special_tokens=plain.encode_special_tokens)
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
        skipped_empty=tally.empty,
        skipped_undecodable=tally.undecodable,
        undecodable_named=tuple(tally.undecodable_named),
        files_read=found.num_files,
        left_out=tuple(found.left_out),
        idx_path=writer.idx_path,
        loss_mask_idx_path=writer.loss_mask_idx_path,
        tokenizer_path=saved,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """Makes a part's token files; see `_work.Recipe`."""

    columns: ChatColumns | PairColumns
    tokenizer: Path
    vocab_size: int
    cutoff_len: int | None
    no_targets: NoTargets
    undecodable: Undecodable

    def reader(self) -> "_Chats | _Pairs":
        """Returns what encodes rows."""
        tokenizer = _loaded(self.tokenizer, *map(FileStamp.of, tokenizer_files(self.tokenizer)))
        if isinstance(self.columns, ChatColumns):
            return _Chats(self.columns, tokenizer, self.cutoff_len)
        return _Pairs(self.columns, tokenizer, self.cutoff_len)

    def describe(self) -> dict[str, Any]:
        """Returns everything that shapes the output, as JSON values."""
        columns = asdict(self.columns)
        template = columns.pop("chat_template", None)
        files = [*tokenizer_files(self.tokenizer), *([template] if template else [])]
        return {
            **columns,
            "tokenizer": fingerprint(files),
            "cutoff_len": self.cutoff_len,
            "no_targets": self.no_targets,
            "undecodable": self.undecodable,
        }

    def write(self, spans: Sequence[Span], prefix: Path) -> Tally:
        """Writes the rows of the spans."""
        reader = self.reader()
        skipped, tally, seen = Skipped(), Tally(), set[str]()
        gate = Gate(self.undecodable, skipped)
        with MaskedTokenWriter(prefix, vocab_size=self.vocab_size, overwrite=True) as writer:
            rows = chain.from_iterable(rows_of(span, reader.required, reader.optional, gate, seen) for span in spans)
            for origin, encoded in _encoded(reader, rows, skipped):
                if not encoded.num_trained_tokens and self.no_targets == "drop":
                    tally.drop(origin)
                    continue
                _naming(origin, encoded.check_targets)
                writer.append(encoded.input_ids, encoded.loss_mask)
                tally.longest = max(tally.longest, len(encoded))
                tally.cut_sequences += encoded.num_cut_tokens > 0
                tally.cut_tokens += encoded.num_cut_tokens
            tally.sequences, tally.tokens = len(writer), writer.num_tokens
        tally.skip(skipped)
        tally.seen = sorted(seen)
        return tally


@lru_cache(maxsize=1)
def _loaded(path: Path, *stamps: FileStamp) -> ChatTokenizer:
    return load_chat_tokenizer(path)


class _Chats:
    """Rows of conversations, encoded."""

    def __init__(self, columns: ChatColumns, tokenizer: ChatTokenizer, cutoff_len: int | None) -> None:
        self.required = [columns.messages]
        self.optional = [columns.tools] if columns.tools is not None else []
        self._encoder = ChatEncoder(
            tokenizer,
            chat_template=columns.chat_template,
            max_tokens=cutoff_len,
            train_turns=columns.train_turns,
            template_options=columns.template_options,
        )
        self.encode = self._encoder.encode

    def read(self, messages: Any, tools: Any = None) -> Any:
        """Renders one conversation, which finds its mistakes."""
        return self._encoder.render(_parsed("messages", messages), _parsed("tools", tools))


class _Pairs:
    """Rows of prompts and responses, encoded."""

    def __init__(self, columns: PairColumns, tokenizer: ChatTokenizer, cutoff_len: int | None) -> None:
        self.required = [columns.prompt, columns.response]
        self.optional: list[str] = []
        self.encode = PairEncoder(tokenizer, max_tokens=cutoff_len, eos=columns.eos).encode

    def read(self, prompt: Any, response: Any) -> Any:
        """Checks one pair."""
        return check_pair(prompt, response)


def _encoded(
    reader: _Chats | _Pairs, rows: Iterable[Row], skipped: Skipped
) -> Iterator[tuple[object, EncodedSequence]]:
    """Yields (file and line, sequence), row after row; encodes batch by batch."""
    batch: list[tuple[object, Any]] = []
    for row in rows:
        if any(value is None or value == [] for value in row.values[: len(reader.required)]):
            skipped.empty += 1
            continue
        batch.append((row.origin, _naming(row.origin, reader.read, *row.values)))
        if len(batch) >= _BATCH_ROWS:
            yield from _encoded_batch(reader, batch)
            batch = []
    yield from _encoded_batch(reader, batch)


def _encoded_batch(
    reader: _Chats | _Pairs, batch: Sequence[tuple[object, Any]]
) -> Iterator[tuple[object, EncodedSequence]]:
    origins = [origin for origin, _ in batch]
    return zip(origins, reader.encode([item for _, item in batch]), strict=True)


def _parsed(name: str, value: Any) -> Any:
    """A table may keep what is nested as JSON text, so that not every row gets the columns of all others."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"the {name} are text that is not JSON: {error.msg} at column {error.colno}") from None


def _naming(origin: object, function: Callable[..., _Result], *args: Any) -> _Result:
    """Calls a function so that its error says which row is wrong."""
    try:
        return function(*args)
    except NoTargetsError as error:
        raise NoTargetsError(f"{origin}: {error} (--no-targets drop)") from None
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from error
