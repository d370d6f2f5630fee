"""Token files joined into one, and what Megatron writes that must not be packed as it is."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.flat_words import tokenize
from tests.shelf.tokenize.made import sequences

from packhorse.client.sources import as_token_source
from packhorse.formats import MegatronWriter, write_flat_tokens
from packhorse.formats.megatron import MaskedTokenWriter
from packhorse.prepare import prepare
from packhorse.tokenize import join_token_files
from packhorse.tokenize.commands.tokenize import command


def _pair(prefix: Path, lengths: Sequence[int], documents: Sequence[int] | None = None, first: int = 1) -> Path:
    """A pair as Megatron's tools write it: all tokens are different."""
    sizes = np.array(lengths, "<i4")
    offsets = (np.cumsum(sizes, dtype="<i8") - sizes) * 2
    groups = np.array(range(len(lengths) + 1) if documents is None else documents, "<i8")
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, len(lengths), len(groups))
    prefix.with_suffix(".idx").write_bytes(header + sizes.tobytes() + offsets.tobytes() + groups.tobytes())
    np.arange(first, first + sizes.sum(), dtype="<u2").tofile(prefix.with_suffix(".bin"))
    return prefix.with_suffix(".idx")


def test_several_pairs_become_one_in_order_and_prepare_names_the_command(tmp_path: Path) -> None:
    one, other = _pair(tmp_path / "a", [3, 4]), _pair(tmp_path / "b", [5, 6], first=100)
    with pytest.raises(ValueError, match=r"packhorse tokenize --input \S+a\.idx --input \S+b\.idx --output JOINED"):
        prepare([one, other], max_seq_len=16, output=tmp_path / "d")
    with pytest.raises(ValueError, match="packhorse tokenize --input"):
        prepare(tmp_path / "*.idx", max_seq_len=16, output=tmp_path / "d")
    result = CliRunner().invoke(
        command, ["--input", str(other), "--input", str(one), "--output", str(tmp_path / "joined")]
    )
    assert result.exit_code == 0, result.output
    joined = sequences(tmp_path / "joined")
    assert joined == [list(range(100, 105)), list(range(105, 111)), [1, 2, 3], [4, 5, 6, 7]]
    manifest = prepare(tmp_path / "joined.idx", max_seq_len=16, output=tmp_path / "d")
    assert (manifest.num_sequences, manifest.total_tokens) == (4, 18)


def test_sentences_are_refused_by_prepare_and_loaders_and_joined_to_documents(tmp_path: Path) -> None:
    path = _pair(tmp_path / "sentences", [3, 2, 4, 1, 5], documents=[0, 2, 2, 5])
    with pytest.raises(ValueError, match=r"document 0 is 2 sequences.*tokenize --input"):
        prepare(path, max_seq_len=16, output=tmp_path / "d")
    with pytest.raises(ValueError, match="document 0 is 2 sequences"):
        as_token_source(path)
    with pytest.raises(ValueError, match="document 0 is 2 sequences"):
        as_token_source(path.as_uri())
    summary = join_token_files(path, tmp_path / "documents")
    assert (summary.entries, summary.documents, summary.empty) == (5, 2, 1)
    assert sequences(tmp_path / "documents") == [[1, 2, 3, 4, 5], list(range(6, 16))]


def test_masks_keys_and_tokenizer_are_joined_too(tmp_path: Path) -> None:
    for name, mask in (("a", [False, True]), ("b", [True, True])):
        with MaskedTokenWriter(tmp_path / name, vocab_size=9) as writer:
            writer.append([1, 2], mask)
    summary = join_token_files(tmp_path / "*.idx", tmp_path / "joined")
    assert summary.files == 2
    assert sequences(tmp_path / "joined.loss_mask") == [[0, 1], [1, 1]]
    with MegatronWriter(tmp_path / "c", vocab_size=9) as writer:
        writer.append([1, 2])
    with pytest.raises(ValueError, match=r"c\.bin has none beside it"):
        join_token_files([tmp_path / "a.idx", tmp_path / "c.idx"], tmp_path / "mixed")

    for name in ("k", "l"):
        text = tmp_path / f"{name}.jsonl"
        text.write_text(f'{{"text": "hello {name}", "url": "{name}"}}\n')
        known = None if name == "k" else tmp_path / "k.tokenizer.json"
        vocab_size = 300 if name == "k" else None
        tokenize(text, tmp_path / name, tokenizer=known, vocab_size=vocab_size, id_column="url")
    keyed = join_token_files([tmp_path / "k.idx", tmp_path / "l.idx"], tmp_path / "keyed")
    assert keyed.tokenizer_path == tmp_path / "keyed.tokenizer.json"
    manifest = prepare(tmp_path / "keyed.idx", max_seq_len=64, output=tmp_path / "d")
    assert manifest.keys is not None


def test_flat_files_join_with_pairs_and_other_types_are_refused(tmp_path: Path) -> None:
    pair = _pair(tmp_path / "a", [2])
    write_flat_tokens(tmp_path / "flat.bin", [[7], [], [8, 9]], "uint16")
    summary = join_token_files([pair, tmp_path / "flat.bin"], tmp_path / "joined")
    assert sequences(tmp_path / "joined") == [[1, 2], [7], [8, 9]]
    assert summary.empty == 1
    write_flat_tokens(tmp_path / "wide.bin", [[7, 70_000]], "uint32")
    with pytest.raises(ValueError, match=r"wide\.bin int32, as files of different tokenizers"):
        join_token_files([pair, tmp_path / "wide.bin"], tmp_path / "more")
    assert join_token_files(tmp_path / "wide.bin", tmp_path / "more").dtype == "int32"
    assert sequences(tmp_path / "more") == [[7, 70_000]]
    write_flat_tokens(tmp_path / "wide.bin", [[2**31]], "uint32", overwrite=True)
    with pytest.raises(ValueError, match="token id 2147483648"):
        join_token_files(tmp_path / "wide.bin", tmp_path / "again")
    assert not list(tmp_path.glob("again*"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--train-tokenizer"], "leave out --train-tokenizer"),
        (["--show", "2"], "leave out --show"),
        (["--tokenizer", "x.json", "--cutoff-len", "5"], "leave out --tokenizer, --cutoff-len"),
        (["--template-option", "thinking=true"], "leave out --template-option."),
    ],
)
def test_flags_of_text_have_no_use_for_token_files(tmp_path: Path, flags: list[str], message: str) -> None:
    path = _pair(tmp_path / "a", [2])
    result = CliRunner().invoke(command, ["--input", str(path), "--output", str(tmp_path / "o"), *flags])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_an_output_that_is_an_input_and_text_among_token_files_are_refused(tmp_path: Path) -> None:
    path = _pair(tmp_path / "a", [2])
    with pytest.raises(ValueError, match="is one of the inputs"):
        join_token_files([path], tmp_path / "a", overwrite=True)
    assert sequences(tmp_path / "a") == [[1, 2]]
    (tmp_path / "x.txt").write_text("hi")
    with pytest.raises(ValueError, match=r"x\.txt is no token file"):
        join_token_files([path, tmp_path / "x.txt"], tmp_path / "joined")


def test_text_over_chats_removes_their_mask(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("hello")
    with MaskedTokenWriter(tmp_path / "a", vocab_size=9) as writer:
        writer.append([1, 2], [False, True])
    (tmp_path / "a.idx").unlink()
    with pytest.raises(FileExistsError):  # the mask alone would be taken for that of the new tokens
        tokenize(tmp_path / "x.txt", tmp_path / "a", vocab_size=300)
    tokenize(tmp_path / "x.txt", tmp_path / "a", vocab_size=300, overwrite=True)
    assert sorted(path.name for path in tmp_path.glob("a*")) == [
        "a.bin",
        "a.idx",
        "a.tokenizer.json",
        "a.tokenizer_config.json",
    ]
