"""From text to token files: documents in, Megatron `.bin`/`.idx` and the tokenizer out.

Owns the order of the work, and the summary. Leaves documents to `documents`, encoding them to `encoder`, tokenizers to
`tokenizers`, and the files to `packhorse.formats`. Chats, pairs and preferences are in `fine_tuning`.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Self

from packhorse.formats import MegatronTokens, MegatronWriter, token_dtype
from packhorse.formats.beside_tokens import keys_path
from packhorse.formats.megatron import masked_paths
from packhorse.jobs import Execution, Progress, show_progress
from packhorse.parameters import parameter
from packhorse.sft.tokenizer_loading import tokenizer_json_path
from packhorse.storage import refuse_existing
from packhorse.tokenize._execution import check_execution, paths_of
from packhorse.tokenize._output import checked_idx_path, remove_stale, saved_tokenizer_path, tokenizer_outputs
from packhorse.tokenize._work import Job, may_replace, open_work
from packhorse.tokenize.documents import DocumentOptions, cut_for, documents_in, find_documents
from packhorse.tokenize.encoding.encoder import Encoder, SpecialTokens
from packhorse.tokenize.encoding.keys_file import KeysFile
from packhorse.tokenize.encoding.tokenizers import (
    checksum_of,
    content_to_save,
    find_eos,
    save_tokenizer,
    splits_special_tokens,
    tokenizer_files,
)
from packhorse.tokenize.encoding.training import DEFAULT_EOS, DEFAULT_VOCAB_SIZE, train_tokenizer
from packhorse.tokenize.input.files import Found, listed
from packhorse.tokenize.input.parts import cut_into_parts, whole_files
from packhorse.tokenize.input.ranges import FileRange
from packhorse.tokenize.input.skipped import Skipped
from packhorse.tokenize.ledger import join_ledgers, open_ledger
from packhorse.tokenize.tally import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeSummary:
    """Counts and paths of tokenizing."""

    documents: int
    """Sequences written."""
    tokens: int
    """Tokens written, special tokens included."""
    longest: int
    """The longest sequence, in tokens."""
    dtype: str
    """Type of a token in `.bin`: "uint16" or "int32"."""
    vocab_size: int
    """Every token id is below it."""
    bos: str | None
    """The token before every sequence; None for no such token."""
    eos: str | None
    """The token that ends every sequence; None for no such token."""
    skipped_empty: int
    """Documents of only white space, or without a token."""
    skipped_undecodable: int
    """Documents that are binary or not UTF-8."""
    undecodable_named: tuple[str, ...]
    """The first few of these documents."""
    skipped_bad: int
    """Rows that are not JSON, lack a key or hold no text, left out."""
    bad_named: tuple[str, ...]
    """The first few of these rows, with what is wrong."""
    special_in_text: Mapping[str, int]
    """Special token → how often documents spell it."""
    special_kept: int
    """How many special tokens in texts became tokens."""
    own_ends: int
    """Tokens that begin or end a sequence, but were not added because the document's text spells them."""
    unknown_characters: int
    """Characters that the tokenizer does not know, dropped or written as its unknown token."""
    files_read: Mapping[str, int]
    """Kind of file ("JSON lines", "text") → how many were read."""
    left_out: tuple[str, ...]
    """Files of documentation and metadata that were not read because they are beside files of rows."""
    idx_path: Path
    """The index written; the `.bin` is beside it."""
    tokenizer_path: Path
    """The tokenizer that was used, saved beside the output."""
    skipped_path: Path | None
    """The file that lists every row left out; None if none was, or if documents did not come from files."""


def tokenize(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    vocab_size: int | None = None,
    documents: DocumentOptions | None = None,
    special: SpecialTokens | None = None,
    execution: Execution | None = None,
    overwrite: bool = False,
) -> TokenizeSummary:
    """Tokenizes text, JSON, Parquet, Arrow, or folders of such, into `X.bin` and `X.idx`.

    Every document becomes one sequence, in the order of the inputs. The tokenizer is saved beside them as
    `X.tokenizer.json` with its settings in `X.tokenizer_config.json`, and may be used again as `tokenizer`. The files
    have the same bytes for any number of workers and either engine. Memory is bounded by a batch and the longest
    document of each worker, and 4 bytes a sequence; disk space by twice the tokens, since finished parts stay in
    `X.tokenizing` until all are joined.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     poem = Path(folder, "poem.txt")
        ...     _ = poem.write_bytes(b"one line" + bytes([10]) + b"another")
        ...     by_line = DocumentOptions(split="line")
        ...     summary = tokenize(poem, Path(folder, "poem"), documents=by_line, vocab_size=300)
        >>> summary.documents, summary.dtype, summary.eos
        (2, 'uint16', '<|endoftext|>')

    Args:
        inputs: files, folders and glob patterns, or their URLs; see `iterate_documents`.
        output: the prefix X; not a folder.
        tokenizer: a local tokenizer.json, or the folder that holds it; None trains a byte-level BPE on the same
            documents first.
        vocab_size: size of the trained tokenizer, 16,384 when None; not with `tokenizer`.
        documents: how inputs are divided into documents, which columns hold them and their keys, and what happens to
            those that cannot be read; None for the defaults. Keys go into `X.keys.arrow`, where `prepare` finds them.
            Whatever is left out is counted, and named in `X.skipped.jsonl`.
        special: tokens put before and after every sequence; None for the end-of-sequence token.
        execution: engine, workers, progress, and whether an interrupted call is resumed. With `workers` None it takes
            one for less than 64 MiB of input, because the library's threads are enough, and otherwise one for each
            processor.
        overwrite: whether to replace existing files.

    Raises:
        FileExistsError: an output, or parts of an interrupted call, are there, without overwrite or resume.
        FileNotFoundError: an input or the tokenizer is not there.
        ChildProcessError: workers died, or machines were lost; finished parts stay for `resume`.
        ImportError: the extra `packhorse[prepare]`, or Ray, is not installed.
        ValueError: an option is wrong or does not apply to the input, the output is a folder, no token is known to end
            a sequence, an input cannot be read or changed meanwhile, or there is no document.
    """
    execution = execution or Execution()
    check_execution(execution)
    sources = paths_of(listed(inputs), execution)
    options = documents or DocumentOptions()
    overwrite = may_replace(output, resume=execution.resume, overwrite=overwrite)
    target = _Target.checked(output, tokenizer, vocab_size, overwrite=overwrite)
    special = special or SpecialTokens()
    found = find_documents(sources, options)
    job = Job(
        files=whole_files(found.files),
        options={**asdict(options), **asdict(special), **target.describe()},
    )
    parts = cut_into_parts(job.files, lambda kind: cut_for(kind, options))
    with (
        show_progress(quiet=not execution.progress) as progress,
        open_work(output, job, resume=execution.resume, overwrite=overwrite) as work,
    ):
        if target.tokenizer is None and not work.tokenizer_path.exists():  # a resumed job may have it
            # What is left out is counted when the parts are written, not here.
            texts = chain.from_iterable(documents_in(file.range, options, Skipped()) for file in job.files)
            _train(texts, target.vocab_size, special, work.tokenizer_path, progress)
        encoder = Encoder.made(target.tokenizer or work.tokenizer_path, special, is_trained=target.tokenizer is None)
        tally = work.write_parts(parts, _Recipe(encoder, options), execution, progress)
        with (
            MegatronWriter(output, vocab_size=encoder.vocab_size, overwrite=overwrite) as writer,
            _keys_file(options.id_column, output, num_tokens=tally.tokens, overwrite=overwrite) as keys,
        ):
            for number in progress.track(range(len(parts)), "joining", len(parts), "parts"):
                writer.extend(MegatronTokens(work.prefix(number)))
                if keys is not None:
                    keys.extend(work.prefix(number))
            _refuse_empty_output(tally)
            target.save_tokenizer(encoder)
        ledger = join_ledgers(output, list(map(work.prefix, range(len(parts)))))
        remove_stale(output, keeps_keys=options.id_column is not None)
    return _summary(output, encoder, tally, found, ledger)


def tokenize_documents(
    open_documents: Callable[[Skipped], Iterable[str]],
    output: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    vocab_size: int | None = None,
    bos: str | None = None,
    eos: str | None = None,
    append_eos: bool = True,
    overwrite: bool = False,
    progress: bool = True,
) -> TokenizeSummary:
    """Tokenizes documents from any source, in this process; otherwise like `tokenize`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tokenize_documents(lambda skipped: ["a b", "c"], Path(folder, "x"), vocab_size=300).documents
        2

    Args:
        open_documents: function that returns the documents from the beginning, and counts in its argument documents
            that it leaves out. It is called twice if a tokenizer is trained, and must give the same documents again.
        output: as in `tokenize`.
        tokenizer: as in `tokenize`.
        vocab_size: as in `tokenize`.
        bos: as in `SpecialTokens`.
        eos: as in `SpecialTokens`.
        append_eos: as in `SpecialTokens`.
        overwrite: as in `tokenize`.
        progress: whether stderr shows progress.

    Raises:
        FileExistsError, FileNotFoundError, ImportError, ValueError: as `tokenize`.
    """
    target = _Target.checked(output, tokenizer, vocab_size, overwrite=overwrite)
    special = SpecialTokens(bos=bos, eos=eos, append_eos=append_eos)
    skipped, tally = Skipped(), Tally()
    num_documents = None  # not known before a pass over the documents
    with show_progress(quiet=not progress) as shown_progress, tempfile.TemporaryDirectory() as folder:
        trained_path = Path(folder, "tokenizer.json")
        if target.tokenizer is None:
            num_documents = _train(open_documents(Skipped()), target.vocab_size, special, trained_path, shown_progress)
        encoder = Encoder.made(target.tokenizer or trained_path, special, is_trained=target.tokenizer is None)
        with MegatronWriter(output, vocab_size=encoder.vocab_size, overwrite=overwrite) as writer:
            texts = shown_progress.track(open_documents(skipped), "tokenizing", num_documents, "documents")
            encoder.write(texts, writer, tally)
            tally.skip(skipped)
            _refuse_empty_output(tally)
            target.save_tokenizer(encoder)
        ledger = join_ledgers(output, ())  # writes none, and removes that of an earlier output
        remove_stale(output)
    return _summary(output, encoder, tally, Found(files=()), ledger)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """The output to write, and the tokenizer to use."""

    output: str | os.PathLike[str]
    """The prefix X."""
    tokenizer: Path | None
    """The tokenizer's file; None if one is trained."""
    vocab_size: int
    """The most tokens of a tokenizer that is trained; without effect on another."""

    @classmethod
    def checked(
        cls,
        output: str | os.PathLike[str],
        tokenizer: str | os.PathLike[str] | None,
        vocab_size: int | None,
        *,
        overwrite: bool,
    ) -> Self:
        """Finds the tokenizer's file, and refuses an output that cannot be written, before any work."""
        checked_idx_path(output)
        path = None if tokenizer is None else tokenizer_json_path(Path(tokenizer).absolute())
        if path is not None and vocab_size is not None:
            raise ValueError(
                parameter("vocab_size")
                + " is given together with a tokenizer, which has its own; leave one of them out"
            )
        # A loss mask that lay beside an older output would be taken for that of the new one.
        outputs = [*masked_paths(output), keys_path(output), *tokenizer_outputs(output, path)]
        refuse_existing(outputs, overwrite=overwrite)
        return cls(output=output, tokenizer=path, vocab_size=DEFAULT_VOCAB_SIZE if vocab_size is None else vocab_size)

    def describe(self) -> dict[str, Any]:
        """Returns the options of a job that depend on the tokenizer."""
        if self.tokenizer is None:
            return {"vocab_size": self.vocab_size}
        return {"tokenizer": checksum_of(tokenizer_files(self.tokenizer))}

    def save_tokenizer(self, encoder: Encoder) -> None:
        """Saves the tokenizer beside the output, unless the tokenizer is that very file."""
        if tokenizer_outputs(self.output, self.tokenizer):
            eos = encoder.eos or find_eos(encoder.model, encoder.path)
            save_tokenizer(
                saved_tokenizer_path(self.output),
                content_to_save(encoder.path),
                eos=eos,
                split_special_tokens=splits_special_tokens(encoder.path),
            )


def _refuse_empty_output(tally: Tally) -> None:
    """Raises a ValueError if no document was written."""
    if not tally.sequences:
        bad = f" and {tally.bad} bad" if tally.bad else ""
        raise ValueError(
            f"there is no document in the input: {tally.empty} empty and {tally.undecodable} undecodable{bad} were "
            f"skipped{_first_two([*tally.bad_named, *tally.undecodable_named])}; check the paths, the glob pattern and "
            "the text column"
        )


def _first_two(names: Sequence[str]) -> str:
    """Returns the first two names in brackets, for a message; empty for none."""
    return f" ({', '.join(names[:2])}{', …' if len(names) > 2 else ''})" if names else ""


def _train(texts: Iterable[str], vocab_size: int, special: SpecialTokens, path: Path, progress: Progress) -> int:
    """Trains a tokenizer and saves it with its settings; returns the number of documents."""
    num_documents = 0

    def counted() -> Iterator[str]:
        nonlocal num_documents
        for text in progress.track(texts, "training", unit="documents"):
            num_documents += 1
            yield text

    eos = (special.eos or DEFAULT_EOS) if special.append_eos else None
    special_tokens = dict.fromkeys(token for token in (eos, special.bos) if token)  # each once, in this order
    model = train_tokenizer(counted(), vocab_size=vocab_size, special_tokens=special_tokens)
    content = model.to_str(pretty=True).encode()
    save_tokenizer(path, content, eos=eos, split_special_tokens=model.encode_special_tokens)
    return num_documents


def _summary(
    output: str | os.PathLike[str], encoder: Encoder, tally: Tally, found: Found, ledger: Path | None
) -> TokenizeSummary:
    """Returns the summary of the files written."""
    return TokenizeSummary(
        documents=tally.sequences,
        tokens=tally.tokens,
        longest=tally.longest,
        dtype=token_dtype(encoder.vocab_size).name,
        vocab_size=encoder.vocab_size,
        bos=encoder.bos,
        eos=encoder.eos,
        skipped_empty=tally.empty,
        skipped_undecodable=tally.undecodable,
        undecodable_named=tuple(tally.undecodable_named),
        skipped_bad=tally.bad,
        bad_named=tuple(tally.bad_named),
        special_in_text=tally.special,
        special_kept=tally.special_ids,
        own_ends=tally.own_ends,
        unknown_characters=tally.unknown,
        files_read=found.num_files,
        left_out=tuple(found.left_out),
        idx_path=checked_idx_path(output),
        tokenizer_path=saved_tokenizer_path(output),
        skipped_path=ledger,
    )


def _keys_file(
    id_column: str | None, output: str | os.PathLike[str], *, num_tokens: int | None = None, overwrite: bool
) -> AbstractContextManager[KeysFile | None]:
    """Returns a file of keys to write, or a context of None if documents have no keys.

    `num_tokens` is the number of all tokens of the output; None for the keys of a part.
    """
    return KeysFile(output, num_tokens=num_tokens, overwrite=overwrite) if id_column else nullcontext()


@dataclass(frozen=True, slots=True)
class _Recipe:
    """Encodes documents with the options of a job; a `_work.Recipe`."""

    encoder: Encoder
    options: DocumentOptions

    def write(self, ranges: Sequence[FileRange], prefix: Path) -> Tally:
        """Encodes the documents of some ranges into the token files of a prefix; see `_work.Recipe`."""
        tally = Tally()
        with (
            MegatronWriter(prefix, vocab_size=self.encoder.vocab_size, overwrite=True) as writer,
            _keys_file(self.options.id_column, prefix, overwrite=True) as keys,
            open_ledger(prefix) as ledger,
        ):
            skipped = Skipped(ledger=ledger)
            documents = chain.from_iterable(
                documents_in(source, self.options, skipped, self.encoder.special_to_refuse) for source in ranges
            )
            self.encoder.write(documents, writer, tally, keys)
            if self.options.on_bad_row == "error":
                skipped.refuse_bad()
        tally.skip(skipped)
        return tally
