"""Text to Megatron files: tokens against the tokenizers library used plainly, special tokens, refusals, the command."""

import json
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from packhorse.cli.tokenize import command
from packhorse.formats import MegatronTokens
from packhorse.prepare.documents import Skipped
from packhorse.prepare.tokenization import TokenizeSummary, tokenize, tokenize_documents
from packhorse.prepare.tokenizers import train_tokenizer

TEXTS = [f"def f{i}(x):\n    return x + {i}  # é ü\n" for i in range(200)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in [*TEXTS, "", " \n"]))
    return path


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A word tokenizer with what trips a careless user: truncation, padding, a gap in the ids, [CLS] in front."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2, "<eos>": 3, "[CLS]": 9}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<eos>", "[CLS]"])
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 9)])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    path = tmp_path / "local.json"
    tokenizer.save(str(path))
    return path


def sequences(prefix: Path) -> list[list[int]]:
    tokens = MegatronTokens(prefix)
    return [tokens.read(i).tolist() for i in range(len(tokens))]


def test_trained_tokenizer_gives_the_text_back(corpus: Path, tmp_path: Path) -> None:
    summary = tokenize(corpus, tmp_path / "x", vocab_size=400)
    tokenizer = Tokenizer.from_file(str(tmp_path / "x.tokenizer.json"))
    eos = tokenizer.token_to_id("<|endoftext|>")
    found = sequences(tmp_path / "x")
    assert found == [[*tokenizer.encode(text).ids, eos] for text in TEXTS]
    assert [tokenizer.decode(ids[:-1]) for ids in found] == TEXTS
    assert summary == TokenizeSummary(
        documents=200,
        tokens=sum(map(len, found)),
        longest=max(map(len, found)),
        dtype="uint16",
        vocab_size=tokenizer.get_vocab_size(),
        skipped_empty=2,
        skipped_undecodable=0,
        undecodable_named=(),
        idx_path=tmp_path / "x.idx",
        tokenizer_path=tmp_path / "x.tokenizer.json",
    )
    assert 257 < summary.vocab_size <= 400


def test_training_is_reproducible(corpus: Path, tmp_path: Path) -> None:
    for name in ("x", "y"):
        tokenize(corpus, tmp_path / name, vocab_size=300)
    for suffix in (".bin", ".idx", ".tokenizer.json"):
        assert (tmp_path / f"x{suffix}").read_bytes() == (tmp_path / f"y{suffix}").read_bytes()


def test_batches_change_nothing(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize(corpus, tmp_path / "x", vocab_size=300)
    for documents, characters in ((7, 1 << 20), (1024, 50), (1, 1)):
        monkeypatch.setattr("packhorse.prepare.tokenization._BATCH_DOCUMENTS", documents)
        monkeypatch.setattr("packhorse.prepare.tokenization._BATCH_CHARACTERS", characters)
        tokenize(corpus, tmp_path / "y", vocab_size=300, overwrite=True)
        assert (tmp_path / "y.bin").read_bytes() == (tmp_path / "x.bin").read_bytes()
        assert (tmp_path / "y.idx").read_bytes() == (tmp_path / "x.idx").read_bytes()


def test_any_byte_survives_a_small_trained_tokenizer() -> None:
    tokenizer = train_tokenizer(["abc"], vocab_size=257)
    text = "".join(map(chr, range(0x20, 0x2FF))) + "漢字 🐎\t\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_text_that_spells_the_end_of_sequence_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("before <|endoftext|> after")
    tokenize(tmp_path / "a.txt", tmp_path / "x", vocab_size=300)
    (ids,) = sequences(tmp_path / "x")
    eos = Tokenizer.from_file(str(tmp_path / "x.tokenizer.json")).token_to_id("<|endoftext|>")
    assert [at for at, token in enumerate(ids) if token == eos] == [len(ids) - 1]


def test_eos_may_be_named_or_left_out(corpus: Path, tmp_path: Path) -> None:
    tokenize(corpus, tmp_path / "x", vocab_size=300, eos="<end>")
    end = Tokenizer.from_file(str(tmp_path / "x.tokenizer.json")).token_to_id("<end>")
    assert all(ids[-1] == end for ids in sequences(tmp_path / "x"))
    tokenize(corpus, tmp_path / "y", vocab_size=300, append_eos=False)
    tokenizer = Tokenizer.from_file(str(tmp_path / "y.tokenizer.json"))
    assert tokenizer.token_to_id("<|endoftext|>") is None
    assert sequences(tmp_path / "y") == [tokenizer.encode(text).ids for text in TEXTS]


def test_local_tokenizer_tokenizes_whole_documents(local: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a b a b a b\n\nb\nc")
    summary = tokenize(tmp_path / "a.txt", tmp_path / "x", tokenizer=local, documents="line")
    assert sequences(tmp_path / "x") == [[9, 1, 2, 1, 2, 1, 2], [9, 2], [9, 0]]
    assert (summary.vocab_size, summary.skipped_empty, summary.longest) == (10, 1, 7)
    assert summary.tokenizer_path.read_bytes() == local.read_bytes()
    tokenize(tmp_path / "a.txt", tmp_path / "y", tokenizer=local, documents="line", eos="<eos>")
    assert sequences(tmp_path / "y") == [[9, 1, 2, 1, 2, 1, 2, 3], [9, 2, 3], [9, 0, 3]]


def test_an_end_of_sequence_that_the_tokenizer_adds_is_not_doubled(local: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(local))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 3)])
    tokenizer.save(str(local))
    (tmp_path / "a.txt").write_text("a b")
    tokenize(tmp_path / "a.txt", tmp_path / "x", tokenizer=local, eos="<eos>")
    assert sequences(tmp_path / "x") == [[1, 2, 3]]


def test_documents_without_a_token_are_counted_as_empty(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "<eos>": 1}, unk_token="<none>"))
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("-")
    tokenizer.save(str(tmp_path / "local.json"))
    (tmp_path / "a.txt").write_text("a-a\n---\na")
    summary = tokenize(
        tmp_path / "a.txt", tmp_path / "x", tokenizer=tmp_path / "local.json", documents="line", eos="<eos>"
    )
    assert sequences(tmp_path / "x") == [[0, 0, 1], [0, 1]]
    assert summary.skipped_empty == 1


def test_wide_vocabularies_take_four_bytes(tmp_path: Path) -> None:
    vocabulary = {"a": 0, "b": 65_499, "[UNK]": 1}
    for name, last in (("narrow", 65_498), ("wide", 65_499)):
        Tokenizer(models.WordLevel({**vocabulary, "b": last}, unk_token="[UNK]")).save(str(tmp_path / "local.json"))
        (tmp_path / "a.txt").write_text("b")
        summary = tokenize(tmp_path / "a.txt", tmp_path / name, tokenizer=tmp_path / "local.json")
        assert sequences(tmp_path / name) == [[last]]
        assert summary.dtype == ("uint16" if name == "narrow" else "int32")


@pytest.mark.parametrize("existing", ["x.bin", "x.idx", "x.tokenizer.json"])
def test_an_existing_output_is_refused_before_any_work(corpus: Path, tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_bytes(b"old")

    def never(_: Skipped) -> list[str]:
        raise AssertionError("documents were opened")

    with pytest.raises(FileExistsError, match=existing):
        tokenize_documents(never, tmp_path / "x")
    tokenize(corpus, tmp_path / "x", vocab_size=300, overwrite=True)
    assert len(sequences(tmp_path / "x")) == 200


def test_a_second_run_may_use_the_tokenizer_of_the_first_in_place(corpus: Path, tmp_path: Path) -> None:
    tokenize(corpus, tmp_path / "x", vocab_size=300)
    first, tokenizer = sequences(tmp_path / "x"), (tmp_path / "x.tokenizer.json").read_bytes()
    for suffix in (".bin", ".idx"):
        (tmp_path / f"x{suffix}").unlink()
    tokenize(corpus, tmp_path / "x", tokenizer=tmp_path / "x.tokenizer.json", eos="<|endoftext|>")
    assert sequences(tmp_path / "x") == first
    assert (tmp_path / "x.tokenizer.json").read_bytes() == tokenizer


@pytest.mark.parametrize("train", [True, False])
def test_an_error_in_the_documents_comes_out_whole_and_leaves_nothing(local: Path, tmp_path: Path, train: bool) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"body": "b"}')
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 2 has no key 'text'"):
        tokenize(tmp_path / "bad.jsonl", tmp_path / "x", tokenizer=None if train else local)
    assert sorted(tmp_path.iterdir()) == before


def test_mistakes_are_named(corpus: Path, local: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "bad.json").write_text("{}")
    before = sorted(tmp_path.iterdir())
    x = tmp_path / "x"
    with pytest.raises(ValueError, match="no document in the input: 1 empty and 0 undecodable"):
        tokenize(tmp_path / "empty.txt", x)
    with pytest.raises(ValueError, match=r"vocab_size is 256; .* at least 257"):
        tokenize(corpus, x, vocab_size=256)
    with pytest.raises(ValueError, match="vocab_size is given together with a tokenizer"):
        tokenize(corpus, x, vocab_size=300, tokenizer=local)
    with pytest.raises(ValueError, match="eos '<nope>' is not a token"):
        tokenize(corpus, x, tokenizer=local, eos="<nope>")
    with pytest.raises(FileNotFoundError, match=r"none\.json is not there"):
        tokenize(corpus, x, tokenizer=tmp_path / "none.json")
    with pytest.raises(ValueError, match=r"bad\.json is not a tokenizer\.json"):
        tokenize(corpus, x, tokenizer=tmp_path / "bad.json")
    assert sorted(tmp_path.iterdir()) == before


def test_command_writes_the_same_files_and_prints_a_summary(corpus: Path, tmp_path: Path) -> None:
    flags = ["--input", str(corpus), "--output", str(tmp_path / "x"), "--train-tokenizer", "--vocab-size", "300"]
    result = CliRunner().invoke(command, flags, catch_exceptions=False)
    assert result.exit_code == 0
    summary = tokenize(corpus, tmp_path / "y", vocab_size=300)
    for suffix in (".bin", ".idx", ".tokenizer.json"):
        assert (tmp_path / f"x{suffix}").read_bytes() == (tmp_path / f"y{suffix}").read_bytes()
    assert f"{summary.tokens:,} (uint16)" in result.output
    assert str(tmp_path / "x.idx") in result.output


def test_command_takes_folders_and_several_inputs(local: Path, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "a.py").write_text("a")
    (folder / "b.md").write_text("b")
    (folder / "c.py").write_bytes(struct.pack("<I", 0))
    (tmp_path / "lines.txt").write_text("b b\n\na a")
    flags = ["--input", str(folder), "--input", str(tmp_path / "l*.txt"), "--output", str(tmp_path / "x")]
    flags += ["--tokenizer", str(local), "--glob", "*.py", "--documents", "paragraph", "--eos", "<eos>"]
    result = CliRunner().invoke(command, flags, catch_exceptions=False)
    assert result.exit_code == 0
    assert sequences(tmp_path / "x") == [[9, 1, 3], [9, 2, 2, 3], [9, 1, 1, 3]]
    assert "c.py" in result.output


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "either --tokenizer FILE or --train-tokenizer"),
        (["--tokenizer", "t.json", "--train-tokenizer"], "either --tokenizer FILE or --train-tokenizer"),
        (["--tokenizer", "t.json", "--vocab-size", "300"], "--vocab-size goes with --train-tokenizer"),
        (["--train-tokenizer", "--eos", "x", "--no-eos"], "either --eos TOKEN or --no-eos"),
    ],
)
def test_command_refuses_flags_that_do_not_go_together(flags: list[str], message: str) -> None:
    result = CliRunner().invoke(command, ["--input", "i", "--output", "o", *flags])
    assert result.exit_code == 2
    assert message in result.output


def test_every_flag_of_the_command_has_help() -> None:
    assert [option.name for option in command.params if not getattr(option, "help", None)] == []
