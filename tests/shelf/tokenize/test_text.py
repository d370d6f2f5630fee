"""Text to Megatron files: tokens against the tokenizers library used plainly, special tokens, refusals."""

from pathlib import Path

import pytest
from tests.flat_words import tokenize
from tests.shelf.tokenize.made import TEXTS, sequences
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from packhorse.tokenize import Skipped, TokenizeSummary, tokenize_documents, train_tokenizer


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
        bos=None,
        eos="<|endoftext|>",
        skipped_empty=2,
        skipped_undecodable=0,
        undecodable_named=(),
        skipped_bad=0,
        bad_named=(),
        special_in_text={},
        special_kept=0,
        own_ends=0,
        unknown_characters=0,
        files_read={"JSON lines": 1},
        left_out=(),
        idx_path=tmp_path / "x.idx",
        tokenizer_path=tmp_path / "x.tokenizer.json",
        skipped_path=tmp_path / "x.skipped.jsonl",
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
        monkeypatch.setattr("packhorse.tokenize.encoding.encoder._BATCH_DOCUMENTS", documents)
        monkeypatch.setattr("packhorse.tokenize.encoding.encoder._BATCH_CHARACTERS", characters)
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


def test_a_token_may_begin_every_sequence(corpus: Path, local: Path, tmp_path: Path) -> None:
    """Unless the tokenizer puts it there by itself."""
    summary = tokenize(corpus, tmp_path / "x", vocab_size=300, bos="<s>")
    tokenizer = Tokenizer.from_file(str(tmp_path / "x.tokenizer.json"))
    bos, eos = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("<|endoftext|>")
    assert sequences(tmp_path / "x") == [[bos, *tokenizer.encode(text).ids, eos] for text in TEXTS]
    assert summary.bos == "<s>"
    (tmp_path / "a.txt").write_text("a b")
    for bos_token, expected in ((None, [9, 1, 2]), ("[CLS]", [9, 1, 2]), ("<eos>", [3, 9, 1, 2])):
        tokenize(tmp_path / "a.txt", tmp_path / "y", tokenizer=local, bos=bos_token, append_eos=False, overwrite=True)
        assert sequences(tmp_path / "y") == [expected]
    with pytest.raises(
        ValueError, match=r"bos '<nope>' is not a token of the tokenizer; name one that is, or leave it out"
    ):
        tokenize(corpus, tmp_path / "z", tokenizer=local, bos="<nope>", append_eos=False)


def test_local_tokenizer_tokenizes_whole_documents(local: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a b a b a b\n\nb\nc")
    summary = tokenize(tmp_path / "a.txt", tmp_path / "x", tokenizer=local, documents="line", append_eos=False)
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


@pytest.mark.parametrize("eos", [None, "<end>"])
def test_a_trained_tokenizer_ends_sequences_when_it_is_used_again(
    corpus: Path, tmp_path: Path, eos: str | None
) -> None:
    """Its copies and theirs too, and text that spells the token stays text."""
    (tmp_path / "a.txt").write_text(f"before {eos or '<|endoftext|>'} after")
    inputs = [corpus, tmp_path / "a.txt"]
    tokenize(inputs, tmp_path / "x", vocab_size=300, eos=eos)
    for source, name in (("x", "y"), ("y", "z")):
        summary = tokenize(inputs, tmp_path / name, tokenizer=tmp_path / f"{source}.tokenizer.json")
        assert summary.eos == (eos or "<|endoftext|>")
        assert sequences(tmp_path / name) == sequences(tmp_path / "x")
    without = tokenize(inputs, tmp_path / "w", tokenizer=tmp_path / "x.tokenizer.json", append_eos=False)
    assert without.eos is None
    assert sequences(tmp_path / "w") == [ids[:-1] for ids in sequences(tmp_path / "x")]
    assert tokenize(inputs, tmp_path / "v", tokenizer=tmp_path / "w.tokenizer.json").eos == summary.eos


def test_the_settings_of_a_folder_name_the_end_of_sequence(local: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(local.read_bytes())
    (tmp_path / "a.txt").write_text("a b")
    for form in ('"<eos>"', '{"content": "<eos>"}'):
        (folder / "tokenizer_config.json").write_text(f'{{"eos_token": {form}}}')
        tokenize(tmp_path / "a.txt", tmp_path / "x", tokenizer=folder, overwrite=True)
        assert sequences(tmp_path / "x") == [[9, 1, 2, 3]]
    (folder / "tokenizer_config.json").write_text("not json")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json is not JSON"):
        tokenize(tmp_path / "a.txt", tmp_path / "y", tokenizer=folder)


def test_a_tokenizer_without_a_known_end_of_sequence_is_refused(corpus: Path, local: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(
        ValueError,
        match=r"local\.json ends a sequence: name it with eos='TOKEN', or .* append_eos=False.*<eos>, \[CLS\]",
    ):
        tokenize(corpus, tmp_path / "x", tokenizer=local)
    assert sorted(tmp_path.iterdir()) == before


def test_a_token_in_front_is_no_end_of_sequence(local: Path, tmp_path: Path) -> None:
    """One token may both begin and end a sequence; that it stands in front does not end anything."""
    (tmp_path / "a.txt").write_text("a b")
    tokenize(tmp_path / "a.txt", tmp_path / "x", tokenizer=local, eos="[CLS]")
    assert sequences(tmp_path / "x") == [[9, 1, 2, 9]]


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
        summary = tokenize(tmp_path / "a.txt", tmp_path / name, tokenizer=tmp_path / "local.json", append_eos=False)
        assert sequences(tmp_path / name) == [[last]]
        assert summary.dtype == ("uint16" if name == "narrow" else "int32")


@pytest.mark.parametrize("existing", ["x.bin", "x.idx", "x.tokenizer.json", "x.tokenizer_config.json"])
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
    tokenize(corpus, tmp_path / "x", tokenizer=tmp_path / "x.tokenizer.json")
    assert sequences(tmp_path / "x") == first
    assert (tmp_path / "x.tokenizer.json").read_bytes() == tokenizer


@pytest.mark.parametrize("train", [True, False])
def test_an_error_in_the_documents_comes_out_whole_and_leaves_nothing(local: Path, tmp_path: Path, train: bool) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"body": "b"}')
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 2 has no key 'text'"):
        tokenize(tmp_path / "bad.jsonl", tmp_path / "x", tokenizer=None if train else local, append_eos=train)
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


@pytest.mark.parametrize("output", ["tk/", "tk/.idx", "there", "there/", ""])
def test_a_folder_is_no_prefix(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    before = sorted(tmp_path.rglob("*"))
    inside = str(Path(output.removesuffix(".idx")) / "corpus")
    with pytest.raises(ValueError, match=f"^output {output} is a folder; .* e.g. {inside}$"):
        tokenize(corpus, output, vocab_size=300)
    assert sorted(tmp_path.rglob("*")) == before
