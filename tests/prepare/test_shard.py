"""`packhorse shard`: every sequence in the shard it belongs to, and once in an epoch of the mixture."""

import signal
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests import commands
from tests.flat_words import prepare, shard

from packhorse.cli import main
from packhorse.client import Topology, connect
from packhorse.dataset import open_prepared
from packhorse.prepare.pipeline import write_job


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
    proof = pytest.importorskip("packhorse.proof")
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
        shown = CliRunner().invoke(main, ["inspect", str(dataset.path)]).output
        assert f"read: Parquet, column 'length', {len(rows)} rows\n" in shown
    with connect(f"embedded:{root}") as client:
        info = client.get_dataset("web")
        assert [component.name for component in info.components] == ["web-de", "web-en", "web-zh-Hant"]
        assert info.num_bins == sum(component.num_bins for component in info.components)
        report = proof.EpochOfStreams(
            client=client, dataset=info, epoch=1, seed=2, topology=Topology(world_size=2)
        ).audit()
        assert report.problems == []
        assert report.sequences == 300
        assert [set(each.times) for each in report.components] == [{1}] * 3


def test_arrow_files_have_columns_too(table, tmp_path, undisturbed):
    """With the bins of the same rows in Parquet; how the column's values are held does not matter."""
    rows = pq.read_table(table[0])
    at = rows.schema.get_field_index("language")
    for kind, column in (("plain", rows["language"]), ("held-once", rows["language"].dictionary_encode())):
        held = rows.set_column(at, "language", column)
        (tmp_path / kind).mkdir()
        for number, part in enumerate((held.slice(0, 170), held.slice(170))):
            feather.write_feather(part, tmp_path / kind / f"{number}.arrow", chunksize=64, compression="uncompressed")
        root = tmp_path / f"root-{kind}"
        flags = ("--by", "language", "--name", "web", "--length-column", "length", "--data-root", root)
        result = run(tmp_path / kind, *flags)
        assert result.exit_code == 0, result.output
        for name in ("web.mixture.toml", "web-en/pools.npy", "web-en/templates.json", "web-zh-Hant/pools.npy"):
            assert (root / name).read_bytes() == undisturbed[Path(name)]
        refused = run(tmp_path / kind, "--by", "colour", *flags[2:4], "--data-root", tmp_path / "no", *flags[4:6])
        assert "0.arrow has no column 'colour'; its columns are: 'length'" in refused.output.replace("\n", " ")


def test_files_without_columns_are_cut_by_size_only(tmp_path):
    np.save(tmp_path / "lengths.npy", np.array([3, 4]))
    result = run(tmp_path / "lengths.npy", "--by", "language", "--name", "web", "--data-root", tmp_path / "root")
    assert "names a column of Parquet or Arrow files, and the input is" in result.output.replace("\n", " ")
    assert not (tmp_path / "root").exists()


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
    assert {name: manifest.num_sequences for name, manifest in manifests.items()} == {
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
        ((), "give either --by COLUMN"),
        (("--by", "language", "--sequences", "3"), "give either --by COLUMN"),
        (("--by", "colour"), "has no column 'colour'; its columns are: 'length', 'language', 'bucket'"),
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
    for values, message in (
        (["a", None], "row 1 has no value in column kind"),
        (["../up", "a"], "no part of a folder's name: '../up'; write another column"),
        ([["a"], ["b"]], "column kind holds list<.*; shards are cut by strings or integers"),
    ):
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


KILLED = """
import os, signal, sys
from packhorse.cli import main
from packhorse.storage import Records
import packhorse.prepare.shard
shard = sys.modules["packhorse.prepare.shard"]  # the package has a function of that name
write, add, left = shard.write_job, Records.add, int(os.environ["WHOLE"])

def counted(job):
    global left
    if not left and "INSIDE" in os.environ:
        sys.modules["packhorse.prepare.pipeline"].written_whole = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    elif not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return write(job)

def noted(self, number, digest):
    if self.folder.name == "shards" and digest and not left and "UNNOTED" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, number, digest)

shard.write_job, Records.add = counted, noted
main(["shard", *sys.argv[1:], "--max-seq-len", "64"])
"""
"""A command that is killed when so many shards are whole: before the next or, `UNNOTED`, before it notes the
last or, `INSIDE`, in the middle of the next."""

UNNOTED = {"UNNOTED": "1"}


def killed(whole, *arguments, **environment):
    done = commands.run(*arguments, code=KILLED, WHOLE=str(whole), **environment)
    assert done.returncode == -signal.SIGKILL, done.stderr


def contents(root):
    """Every file below a data root, as bytes."""
    return {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def undisturbed(table, tmp_path):
    """What is in the data root when nothing happens."""
    flags = ("--by", "language", "--name", "web", "--length-column", "length")
    assert run(table[0], *flags, "--data-root", tmp_path / "undisturbed").exit_code == 0
    return contents(tmp_path / "undisturbed")


@pytest.fixture
def written(monkeypatch):
    """The names of shards that are prepared from now on."""
    names = []
    module = sys.modules["packhorse.prepare.shard"]  # the package has a function of that name
    monkeypatch.setattr(module, "write_job", lambda job: names.append(job.folder.name) or write_job(job))
    return names


@pytest.mark.parametrize(
    ("whole", "kept", "environment"), [(0, 0, {}), (1, 1, {}), (2, 2, {}), (1, 0, UNNOTED), (2, 1, UNNOTED)]
)
def test_a_killed_command_goes_on_with_the_shards_that_are_whole(
    table, tmp_path, undisturbed, written, whole, kept, environment
):
    root = tmp_path / "root"
    flags = (table[0], "--by", "language", "--name", "web", "--data-root", root, "--length-column", "length")
    killed(whole, *flags, **environment)
    assert not (root / "web.mixture.toml").exists()
    if whole:
        refused = run(*flags).output.replace("\n", " ")
        assert "web-de exists already; continue interrupted shards by --resume" in refused
    assert not written
    result = run(*flags, "--resume")
    assert result.exit_code == 0, result.output
    assert written == ["web-de", "web-en", "web-zh-Hant"][kept:]
    assert contents(root) == undisturbed


@pytest.mark.parametrize("resume", [False, True])
def test_no_work_of_a_killed_command_outlives_the_next(table, tmp_path, resume):
    root = tmp_path / "root"
    flags = (table[0], "--name", "cut", "--data-root", root, "--length-column", "length")
    killed(2, *flags, "--sequences", 50, INSIDE="1")
    assert (root / ".cut-0002.work").is_dir()
    (root / ".cut-web-0000.work").mkdir()  # another corpus's
    how = ("--sequences", 50, "--resume") if resume else ("--sequences", 150, "--overwrite")
    result = run(*flags, *how)
    assert result.exit_code == 0, result.output
    assert [path.name for path in root.glob(".*.work")] == [".cut-web-0000.work"]


def test_any_number_of_processes_writes_the_same(table, tmp_path, undisturbed):
    root = tmp_path / "root"
    flags = (table[0], "--by", "language", "--name", "web", "--data-root", root, "--length-column", "length")
    assert run(*flags, "--workers", 0).exit_code == 2
    killed(1, *flags)
    result = run(*flags, "--resume", "--workers", 2)
    assert result.exit_code == 0, result.output
    assert contents(root) == undisturbed


def test_a_worker_says_what_is_wrong_with_its_shard(table, tmp_path):
    pq.write_table(pa.table({"length": [65], "language": ["en"], "bucket": [0]}), table[0] / "2.parquet")
    flags = (table[0], "--by", "language", "--name", "web", "--length-column", "length")
    for workers in (1, 2):
        result = run(*flags, "--data-root", tmp_path / str(workers), "--workers", workers)
        assert (result.exit_code, "sequence 300 " in result.output.replace("\n", " ")) == (1, True)
        assert not (tmp_path / str(workers) / "web-en").exists()
        assert not (tmp_path / str(workers) / "web.mixture.toml").exists()


def test_what_has_changed_since_is_not_resumed(table, tmp_path, written):
    flags = (table[0], "--name", "web", "--data-root", tmp_path / "root", "--length-column", "length", "--resume")
    killed(1, *flags[:-1], "--by", "language")
    before = contents(tmp_path / "root" / "web-de")
    for options, message in (
        (("--by", "bucket"), "by was language and is bucket"),
        (("--sequences", 50), "by was language and is None"),
        (("--by", "language", "--align", 4), "align was 1 and is 4"),
    ):
        result = run(*flags, *options)
        assert (result.exit_code, message in result.output.replace("\n", " ")) == (1, True), result.output
    assert contents(tmp_path / "root" / "web-de") == before
    pq.write_table(pa.table({"length": [3], "language": ["en"], "bucket": [0]}), table[0] / "1.parquet")
    assert "1.parquet changed since" in run(*flags, "--by", "language").output.replace("\n", "")
    assert not written


def test_resuming_replaces_nothing_that_it_did_not_begin(table, tmp_path, undisturbed):
    root = tmp_path / "root"
    prepare(lengths=[1, 2], max_seq_len=8, output=root / "web-en", progress=False)
    before = contents(root)
    flags = (table[0], "--by", "language", "--name", "web", "--data-root", root, "--length-column", "length")
    result = run(*flags, "--resume")
    assert (result.exit_code, "web-en exists already" in result.output.replace("\n", " ")) == (1, True)
    assert before.items() <= contents(root).items()
    assert run(*flags, "--resume", "--overwrite").exit_code == 0
    assert contents(root) == undisturbed


def test_a_column_of_categories_makes_shards_of_those_that_rows_have(tmp_path):
    kinds = pa.DictionaryArray.from_arrays(pa.array([2, 0, 2]), pa.array(["-5", "no row's", "..", None]))
    table = pa.table({"length": [3, 4, 5], "kind": kinds})
    feather.write_feather(table, tmp_path / "x.arrow", compression="uncompressed")
    root = tmp_path / "root"
    options = {"data_root": root, "max_seq_len": 8, "by": "kind", "length_column": "length", "progress": False}
    manifests = shard(tmp_path / "x.arrow", name="cut", **options)
    assert {name: manifest.num_sequences for name, manifest in manifests.items()} == {"cut--5": 1, "cut-..": 2}
    with connect(f"embedded:{root}") as client:
        assert [each.name for each in client.get_dataset("cut").components] == ["cut--5", "cut-.."]


def test_a_sequence_that_is_too_long_is_named_by_its_shard(tmp_path):
    pq.write_table(pa.table({"length": [3, 40], "kind": ["a", "b"]}), tmp_path / "x.parquet")
    options = {"max_seq_len": 8, "by": "kind", "length_column": "length", "progress": False}
    with pytest.raises(ValueError, match=r"sequence 1 \(row 0 of shard cut-b\) has 40 tokens"):
        shard(tmp_path / "x.parquet", name="cut", data_root=tmp_path / "root", **options)
