"""`packhorse shard`: every sequence in the shard it belongs to, and once in an epoch of the mixture."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from packhorse.cli import main
from packhorse.client import EpochOfStreams, Topology, connect
from packhorse.dataset import open_prepared
from packhorse.prepare import shard


@pytest.fixture
def table(tmp_path):
    """(files, lengths, languages): 300 rows in two Parquet files."""
    random = np.random.default_rng(3)
    lengths = random.integers(1, 60, 300)
    languages = random.choice(["en", "de", "zh-Hant"], 300, p=[0.7, 0.2, 0.1])
    whole = pa.table({"length": lengths, "language": languages, "bucket": lengths % 3})
    (tmp_path / "corpus").mkdir()
    for number, part in enumerate((whole.slice(0, 170), whole.slice(170))):
        pq.write_table(part, tmp_path / "corpus" / f"{number}.parquet", row_group_size=64)
    return tmp_path / "corpus", lengths, languages


def run(*arguments):
    return CliRunner().invoke(main, ["shard", *map(str, arguments), "--max-seq-len", "64"])


def test_a_column_says_which_shard_a_sequence_is_in(table, tmp_path):
    corpus, lengths, languages = table
    root = tmp_path / "root"
    result = run(corpus, "--by", "language", "--name", "web", "--data-root", root, "--length-column", "length")
    assert result.exit_code == 0, result.output
    for language in ("de", "en", "zh-Hant"):
        dataset = open_prepared(root / f"web-{language}")
        rows = np.flatnonzero(languages == language)  # ids are rows of the whole corpus
        assert sorted(dataset.pool.tolist()) == rows.tolist()
        assert dataset.manifest.id_column is None
        assert dataset.manifest.own_tokens == lengths[rows].sum()
    with connect(f"embedded:{root}") as client:
        info = client.get_dataset("web")
        assert [component.name for component in info.components] == ["web-de", "web-en", "web-zh-Hant"]
        assert info.num_bins == sum(component.num_bins for component in info.components)
        report = EpochOfStreams(client=client, dataset=info, epoch=1, seed=2, topology=Topology(world_size=2)).audit()
        assert report.problems == []
        assert report.sequences == 300
        assert [set(each.times) for each in report.components] == [{1}] * 3


def test_shards_of_a_size_in_order(table, tmp_path):
    manifests = shard(
        [table[0]],
        name="part",
        data_root=tmp_path / "root",
        max_seq_len=64,
        sequences=130,
        length_column="length",
        progress=False,
    )
    assert {name: manifest.n_sequences for name, manifest in manifests.items()} == {
        "part-0000": 130,
        "part-0001": 130,
        "part-0002": 40,
    }
    assert sorted(open_prepared(tmp_path / "root" / "part-0002").pool.tolist()) == list(range(260, 300))


def test_integers_and_overwriting(table, tmp_path):
    flags = (table[0], "--name", "cut", "--data-root", tmp_path / "root", "--length-column", "length")
    assert run(*flags, "--by", "bucket").exit_code == 0
    again = run(*flags, "--by", "bucket")
    assert (again.exit_code, "cut.mixture.toml exists already" in again.output.replace("\n", "")) == (1, True)
    assert run(*flags, "--by", "bucket", "--overwrite").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == [
        "cut-0",
        "cut-1",
        "cut-2",
        "cut.mixture.toml",
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "give either --by"),
        (("--by", "language", "--sequences", "3"), "give either --by"),
        (("--by", "colour"), "has no column colour; there are length, language, bucket"),
        (("--sequences", "0"), "--sequences must be an integer of at least 1"),
        (("--sequences", "1", "--name", "a/b"), "--name must be letters"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_written(table, tmp_path, flags, message):
    given = ("--name", "cut", "--data-root", tmp_path / "root", "--length-column", "length")
    result = run(table[0], *given, *flags)
    assert result.exit_code == 1
    assert message in result.output.replace("\n", " ")
    assert not (tmp_path / "root").exists()


def test_values_that_are_missing_or_no_names_are_refused(tmp_path):
    for values, message in (([None, "a"], "rows without a value"), (["../up", "a"], "no part of a folder's name")):
        pq.write_table(pa.table({"length": [3, 4], "kind": values}), tmp_path / "x.parquet")
        with pytest.raises(ValueError, match=message):
            shard(
                tmp_path / "x.parquet",
                name="cut",
                data_root=tmp_path / "root",
                max_seq_len=8,
                by="kind",
                length_column="length",
            )
