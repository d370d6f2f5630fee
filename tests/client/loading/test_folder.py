"""A prepared folder by itself: served in the process, with the tokens that it was prepared from."""

import shutil

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from packhorse.cli import main
from packhorse.client import BatchFormat, PackedBins, PackedDataset, connect, create_packed_dataloader
from packhorse.client.errors import TokensNotServedError
from packhorse.client.sources import TokenSourceError
from packhorse.dataset import open_prepared
from packhorse.formats import MegatronTokens, MegatronWriter, write_flat_tokens
from packhorse.formats.megatron import MaskedTokenWriter
from packhorse.prepare import InputColumns, PlanOptions, prepare


def written(path, vocabulary=90, num=40, seed=0):
    random = np.random.default_rng(seed)
    lengths = np.random.default_rng(1).integers(1, 30, num)
    with MegatronWriter(path, vocab_size=100, overwrite=True) as writer:
        for length in lengths:
            writer.append(random.integers(0, vocabulary, length))
    return f"{path}.idx"


@pytest.fixture
def root(tmp_path):
    """A folder with tokens, and a dataset prepared from them below it."""
    prepare(written(tmp_path / "corpus"), output=tmp_path / "sets/chats", plan=PlanOptions(max_seq_len=64))
    return tmp_path


def test_prepare_says_the_line_that_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["--input", written(tmp_path / "corpus"), "--output", "sets/chats", "--max-seq-len", "64"]
    result = CliRunner().invoke(main, ["prepare", *arguments])
    assert result.exit_code == 0, result.output
    [line] = [line for line in result.output.splitlines() if line.startswith("train ")]
    assert line.split(maxsplit=1)[1] == "create_packed_dataloader('sets/chats', batch_size=8)"
    assert list(eval(line.split(maxsplit=1)[1], {"create_packed_dataloader": PackedDataset}))


def ids(batches):
    return [batch["ids"].tolist() for batch in batches]


def test_the_folder_is_the_whole_address(root):
    def whole():
        return PackedDataset(
            f"embedded:{root}/sets", "chats", str(root / "corpus.idx"), batch_size=2, seed=3, rank=(0, 1)
        )

    for folder in (f"{root}/sets/chats", root / "sets/chats"):
        one = PackedDataset(folder, batch_size=2, seed=3, rank=(0, 1))
        for batch, expected in zip(one, whole(), strict=True):
            assert batch["input_ids"].tolist() == expected["input_ids"].tolist()
            assert batch["cursor"] == expected["cursor"]
    with create_packed_dataloader(root / "sets/chats", batch_size=2, seed=3, num_workers=0, device="cpu") as loader:
        assert ids(loader) == ids(whole())
    bins = PackedBins(root / "sets/chats", seed=3)
    named = PackedBins(f"embedded:{root}/sets", "chats", str(root / "corpus.idx"), seed=3)
    assert [bins[at]["input_ids"].tolist() for at in range(3)] == [named[at]["input_ids"].tolist() for at in range(3)]


def test_a_relative_folder_and_a_moved_tree_are_found(root, monkeypatch):
    monkeypatch.chdir(root)
    expected = ids(PackedDataset("sets/chats", batch_size=2, rank=(0, 1)))
    shutil.move(root / "sets", root / "moved/sets/below")
    shutil.move(root / "corpus.idx", root / "moved/sets/corpus.idx")
    shutil.move(root / "corpus.bin", root / "moved/sets/corpus.bin")
    shutil.move(root / "moved/sets/below/chats", root / "moved/sets/sets/chats")
    assert open_prepared(root / "moved/sets/sets/chats").manifest.inputs.tokens.path == "../../corpus.idx"
    monkeypatch.chdir(root / "moved")
    assert ids(PackedDataset("sets/sets/chats", batch_size=2, rank=(0, 1))) == expected


def test_a_flat_file_is_found_too(tmp_path):
    random = np.random.default_rng(2)
    sequences = [random.integers(0, 90, length) for length in random.integers(1, 30, 20)]
    write_flat_tokens(tmp_path / "flat.bin", sequences, dtype="uint16")
    prepare(tmp_path / "flat.bin", output=tmp_path / "sets/flat", plan=PlanOptions(max_seq_len=64))
    apart = PackedDataset(f"embedded:{tmp_path}/sets", "flat", str(tmp_path / "flat.bin"), batch_size=1, rank=(0, 1))
    for batch, expected in zip(PackedDataset(tmp_path / "sets/flat", batch_size=1, rank=(0, 1)), apart, strict=True):
        assert batch["input_ids"].tolist() == expected["input_ids"].tolist()
    write_flat_tokens(tmp_path / "flat.bin", [each + 1 for each in sequences], dtype="uint16", overwrite=True)
    with pytest.raises(TokenSourceError, match="other tokens than those"):
        PackedDataset(tmp_path / "sets/flat", batch_size=1)


def test_tokens_that_are_gone_or_others_are_refused_with_the_way_out(root):
    folder = root / "sets/chats"
    written(root / "corpus", seed=9)  # of the same lengths
    with pytest.raises(TokenSourceError, match="other tokens than those"):
        PackedDataset(folder, batch_size=2, rank=(0, 1))
    with pytest.raises(TokenSourceError, match="other tokens than those"):
        list(PackedDataset(folder, tokens=str(root / "corpus.idx"), batch_size=2, rank=(0, 1)))
    (root / "corpus.idx").unlink()
    with pytest.raises(TokenSourceError, match="give tokens= where they are now"):
        PackedDataset(folder, batch_size=2, rank=(0, 1))


def test_what_says_too_little_is_refused(root, tmp_path):
    prepare(lengths=[5, 3, 2], output=tmp_path / "lengths", plan=PlanOptions(max_seq_len=8))
    with pytest.raises(ValueError, match=r"lengths does not say where its tokens are.*give tokens="):
        PackedDataset(tmp_path / "lengths", batch_size=1, rank=(0, 1))
    with pytest.raises(ValueError, match="is no prepared folder"):
        PackedDataset(tmp_path, batch_size=1, rank=(0, 1))
    with pytest.raises(ValueError, match="is no prepared folder"):
        PackedDataset("server:50051", batch_size=1, rank=(0, 1))


def test_a_dataset_that_grew_knows_its_tokens_and_copies_open_as_before(root):
    with MegatronWriter(root / "corpus", vocab_size=100, overwrite=True) as writer:
        for length in [*np.random.default_rng(1).integers(1, 30, 40), 7, 8]:
            writer.append(np.full(length, 5))
    plan = PlanOptions(max_seq_len=64)
    prepare(str(root / "corpus.idx"), output=root / "sets/chats", plan=plan, append=True)
    seen = ids(PackedDataset(root / "sets/chats", batch_size=1, rank=(0, 1)))
    assert sorted(index for batch in seen for index in batch) == list(range(42))


def test_other_tokens_are_refused_where_a_server_names_the_dataset(root):
    target, name = f"embedded:{root}/sets", "chats"
    assert list(PackedDataset(target, name, str(root / "corpus.idx"), batch_size=1, rank=(0, 1)))
    with pytest.raises(TokenSourceError, match="other tokens than those"):
        list(PackedDataset(target, name, written(root / "other", seed=5), batch_size=1, rank=(0, 1)))
    grown = f"{root}/grown"
    with MegatronWriter(grown, vocab_size=100) as writer:
        tokens = MegatronTokens(f"{root}/corpus.idx")
        for row in range(len(tokens)):
            writer.append(tokens.read(row))
        writer.append([1, 2, 3])
    assert list(PackedDataset(target, name, f"{grown}.idx", batch_size=1, rank=(0, 1)))


def tables(root):
    """The same sequences as one Parquet file, two Parquet files, and a folder that `datasets` saved."""
    rng = np.random.default_rng(7)
    sequences = [rng.integers(0, 99, n).tolist() for n in rng.integers(1, 30, 30)]
    rows = {"doc": np.arange(30) * 2 + 5, "input_ids": sequences}
    table = pa.table(rows)
    (root / "two").mkdir()
    pq.write_table(table, root / "one.parquet", row_group_size=7)
    pq.write_table(table.slice(0, 13), root / "two" / "a.parquet")
    pq.write_table(table.slice(13), root / "two" / "b.parquet")
    datasets.Dataset.from_dict(rows).save_to_disk(root / "saved")
    return {"one": "one.parquet", "two": "two", "saved": "saved"}


@pytest.mark.parametrize("kind", ["one", "two", "saved"])
def test_tables_are_found_too(tmp_path, kind):
    source = tmp_path / tables(tmp_path)[kind]
    columns, output = InputColumns(length="input_ids", id="doc"), tmp_path / "sets" / kind
    prepare(source, output=output, max_seq_len=32, columns=columns)
    target = f"embedded:{tmp_path / 'sets'}"
    named, read, sent = (
        [batch["input_ids"].tolist() for batch in PackedDataset(*words, batch_size=2, rank=(0, 1))]
        for words in ((target, kind, str(source)), (output,), (target, kind))
    )
    assert named == read == sent


def test_a_table_of_lengths_alone_names_no_tokens(tmp_path):
    pq.write_table(pa.table({"length": [5, 3, 2]}), tmp_path / "lengths.parquet")
    columns = InputColumns(length="length")
    manifest = prepare(tmp_path / "lengths.parquet", output=tmp_path / "d", max_seq_len=8, columns=columns)
    assert manifest.inputs.tokens is None


def test_a_table_made_again_is_refused_by_who_sends_it(tmp_path):
    rows = [[number, number + 1] for number in range(9)]
    pq.write_table(pa.table({"input_ids": rows}), tmp_path / "t.parquet")
    prepare(tmp_path / "t.parquet", output=tmp_path / "sets" / "t", max_seq_len=8)
    pq.write_table(pa.table({"input_ids": [row[::-1] for row in rows]}), tmp_path / "t.parquet")
    with pytest.raises(TokensNotServedError, match="not those of the plan"):
        next(iter(PackedDataset(f"embedded:{tmp_path / 'sets'}", "t", batch_size=1, rank=(0, 1))))


def test_tables_that_grew_know_their_tokens(tmp_path):
    rng = np.random.default_rng(3)
    sequences = [rng.integers(0, 99, n).tolist() for n in rng.integers(1, 30, 30)]
    folder, output = tmp_path / "parts", tmp_path / "sets/rows"
    folder.mkdir()
    for name, rows in (("a", sequences[:13]), ("b", sequences[13:20]), ("c", sequences[20:])):
        pq.write_table(pa.table({"input_ids": rows}), folder / f"{name}.parquet")
        prepare(
            str(folder / f"{name}.parquet"),
            output=output,
            max_seq_len=64,
            columns=InputColumns(length="input_ids"),
            append=name != "a",
        )
    record = open_prepared(output).manifest.inputs.tokens
    assert (record.path, record.column, record.dtype) == ("../../parts", "input_ids", "int64")
    for batch in PackedDataset(output, batch_size=1, rank=(0, 1)):
        assert batch["input_ids"][batch["attention_mask"].bool()].tolist() == [
            token for sequence_id in batch["ids"].tolist() for token in sequences[sequence_id]
        ]


def test_rows_that_do_not_follow_those_before_are_not_named(tmp_path):
    (tmp_path / "parts").mkdir()
    for name, rows in (("b", [[1, 2], [3]]), ("a", [[4, 5, 6]])):
        pq.write_table(pa.table({"input_ids": rows}), tmp_path / f"parts/{name}.parquet")
        prepare(
            str(tmp_path / f"parts/{name}.parquet"),
            output=tmp_path / "sets/rows",
            max_seq_len=8,
            columns=InputColumns(length="input_ids"),
            append=name == "a",
        )
    assert open_prepared(tmp_path / "sets/rows").manifest.inputs.tokens is None


def test_a_loss_mask_that_is_gone_is_not_ignored(tmp_path):
    with MaskedTokenWriter(tmp_path / "chats", vocab_size=100) as writer:
        for length in range(1, 20):
            writer.append(np.arange(length), np.arange(length) % 2 > 0)
    folder = tmp_path / "sets/chats"
    prepare(f"{tmp_path}/chats.idx", output=folder, plan=PlanOptions(max_seq_len=32))
    record = open_prepared(folder).manifest.inputs.tokens
    assert (record.dtype, record.has_loss_mask) == ("uint16", True)
    with connect(f"embedded:{folder.parent}") as client:
        info = client.get_dataset("chats")
        assert (info.has_tokens, info.has_loss_mask, info.token_dtype) == (True, True, "uint16")
    for path in tmp_path.glob("chats*mask*"):
        path.unlink()
    with pytest.raises(TokenSourceError, match=r"a loss mask lay beside .*chats\.bin when .* and is gone"):
        PackedDataset(folder, batch_size=2, rank=(0, 1))
    with connect(f"embedded:{folder.parent}") as client:
        assert not client.get_dataset("chats").has_tokens
        with pytest.raises(TokensNotServedError):
            client.get_bins("chats", positions=[0], with_tokens=True)
    form = BatchFormat(loss_mask=None)
    assert list(PackedDataset(folder, tokens=f"{tmp_path}/chats.idx", batch_size=2, rank=(0, 1), batch=form))


def test_the_file_of_a_mixture_is_the_whole_address_too(root):
    prepare(written(root / "more", seed=4), output=root / "sets/more", plan=PlanOptions(max_seq_len=64))
    text = "epoch_bins = 9\n[[stages]]\nweights = {chats = 1, more = 2}\n"
    (root / "sets/both.mixture.toml").write_text(text)
    tokens = {"chats": f"{root}/corpus.idx", "more": f"{root}/more.idx"}
    for alone, named in zip(
        PackedDataset(root / "sets/both.mixture.toml", batch_size=3, rank=(0, 1)),
        PackedDataset(f"embedded:{root / 'sets'}", "both", tokens, batch_size=3, rank=(0, 1)),
        strict=True,
    ):
        assert alone["input_ids"].tolist() == named["input_ids"].tolist()
        assert alone["cursor"] == named["cursor"]
