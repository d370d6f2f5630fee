"""`packhorse audit`: quiet about a sound epoch, and naming the ids of one that is not."""

import dataclasses
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.flat_words import prepare

from packhorse.client import BinBlock, connect
from packhorse.proof.epoch_audit import EpochOfStreams
from packhorse.topology import Skips, Topology

TOPOLOGY = Topology(world_size=2, workers_per_rank=2, batch_size=3)


@pytest.mark.parametrize("remainder", ["spread", "drop", "repeat", "empty"])
@pytest.mark.parametrize("start", [0, 13])
def test_every_remainder_is_exactly_once(packhorse, target, client, remainder, start):
    num_bins = client.get_dataset("rows").num_bins
    flags = ["--world-size", 3, "--workers-per-rank", 2, "--batch-size", 5, "--remainder", remainder]
    result = packhorse("audit", "--target", target, "rows", *flags, "--start-position", start, "--seed", 6)
    assert result.exit_code == 0, result.output
    found = re.findall(r"left out on purpose by (.*): (\d+) sequences in (\d+) bins", result.stdout)
    left_out = {option: (int(sequences), int(bins)) for option, sequences, bins in found}
    rest = 2000 - sum(sequences for sequences, _ in left_out.values())
    said = f"the other {rest:,} sequences came exactly once" if left_out else "exactly once: yes"
    assert result.stdout.endswith(f"\n{said}\n")
    assert "2,000 sequences" in result.stdout
    assert result.stderr == ""
    num_steps = (num_bins - start) // 15 + ((num_bins - start) % 15 > 0 and remainder != "drop")
    assert f"3 ranks × 2 workers, {num_steps} steps each" in result.stdout
    dropped = (num_bins - start) % 15 if remainder == "drop" else 0
    by_option = {"--start-position": range(start), "--remainder drop": range(num_bins - dropped, num_bins)}
    assert left_out == {
        option: (len(client.get_bins("rows", epoch=0, seed=6, positions=list(positions)).ids), len(positions))
        for option, positions in by_option.items()
        if positions
    }
    assert ("repeated to fill the last step" in result.stdout) == (remainder == "repeat")
    assert ("empty bins" in result.stdout) == (remainder == "empty")


def test_what_a_run_has_not_come_to_is_told_apart(packhorse, target, client):
    num_bins = client.get_dataset("rows").num_bins
    flags = ["--world-size", 3, "--workers-per-rank", 2, "--batch-size", 5, "--seed", 6, "--until", 40]
    result = packhorse("audit", "--target", target, "rows", *flags)
    assert result.exit_code == 0, result.output
    came = len(client.get_bins("rows", seed=6, positions=list(range(40))).ids)
    assert f"not reached by --until: {2000 - came:,} sequences in " in result.stdout
    assert num_bins > 40
    assert result.stdout.endswith(f"\nthe other {came:,} sequences came exactly once\n")
    result = packhorse("audit", "--target", target, "rows", *flags[:-1], num_bins)
    assert result.stdout.endswith("\nexactly once: yes\n")
    result = packhorse("audit", "--target", target, "rows", *flags[:-1], num_bins + 1)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"--until {num_bins + 1} is after the {num_bins:,} bins of epoch 0: a cursor's position" in result.stderr


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--remainder", "drop", "--batch-size", 100_000], r"--remainder drop .* takes 100000 .*: lower these"),
        (["--start-position", "end"], r"--start-position \d+ is the epoch's end; give one below \d+"),
        (["--start-position", "end", "--remainder", "repeat"], "is the epoch's end"),
    ],
)
def test_an_audit_of_nothing_is_no_success(packhorse, corpus, flags, why):
    target = f"embedded:{corpus.root}"
    with connect(target) as client:
        end = client.get_dataset("rows").num_bins
    flags = [end if flag == "end" else flag for flag in flags]
    result = packhorse("audit", "--target", target, "rows", *flags)
    assert result.exit_code == 1
    assert re.search(f"nothing was audited: .*{why}", result.stderr)
    assert "exactly once" not in result.output


def test_an_audit_of_no_bins_is_no_success(packhorse, corpus, monkeypatch):
    class Empty(Faulty):
        def get_dataset(self, name):
            return dataclasses.replace(self.client.get_dataset(name), num_bins=0)

        def stream_bins(self, name, *, topology, **options):
            end = dataclasses.replace(topology, start_position=self.client.get_dataset(name).num_bins)
            return self.client.stream_bins(name, topology=end, **options)

    monkeypatch.setattr(
        "packhorse.cli.shared.service.asking", lambda target, timeout_seconds: Empty(connect(target), None)
    )
    result = packhorse("audit", "--target", f"embedded:{corpus.root}", "few")
    assert result.exit_code == 1
    assert "nothing was audited: few has no bins; prepare it again" in result.stderr


@pytest.mark.parametrize("dataset", ["named", "truncated", "few"])
def test_every_dataset_is_exactly_once_embedded(packhorse, corpus, dataset):
    flags = ["--world-size", 4, "--batch-size", 2, "--epoch", 3]
    result = packhorse("audit", "--target", f"embedded:{corpus.root}", dataset, *flags)
    assert result.exit_code == 0, result.output
    assert f"{len(corpus.ids[dataset]):,} sequences" in result.stdout


class Faulty:
    """A client whose streams go through `fault`, a function of a stream's rank, worker and blocks."""

    def __init__(self, client, fault):
        self.client, self.fault = client, fault

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def get_dataset(self, name):
        return self.client.get_dataset(name)

    def get_bins(self, *arguments, **options):
        return self.client.get_bins(*arguments, **options)

    def stream_bins(self, *arguments, rank, worker, **options):
        return FaultyStream(
            self.client.stream_bins(*arguments, rank=rank, worker=worker, **options), self.fault, rank, worker
        )


class FaultyStream:
    def __init__(self, stream, fault, rank, worker):
        self.stream, self.fault, self.place = stream, fault, (rank, worker)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()

    @property
    def header(self):
        return self.stream.header

    @property
    def topology(self):
        return self.stream.topology

    def __iter__(self):
        blocks = list(self.stream)
        return iter(self.fault(blocks) if self.place == (1, 0) else blocks)


def lose_a_block(blocks):
    return blocks[:2] + blocks[3:]


def repeat_a_block(blocks):
    return [*blocks[:2], blocks[1], *blocks[2:]]


def swap_an_id(blocks):
    """As many sequences and tokens as there should be: only the ids tell."""
    ids = blocks[0].ids.copy()
    ids[0] = blocks[1].ids[0]
    return [dataclasses.replace(blocks[0], ids=ids), *blocks[1:]]


def overfill_a_bin(blocks):
    block = blocks[1]
    merged = np.delete(block.bin_ends, [0, 1])
    empty = np.array([0, 0])
    return [blocks[0], dataclasses.replace(block, bin_ends=np.concatenate((empty, merged))), *blocks[2:]]


def invent_an_id(blocks):
    ids = blocks[0].ids.copy()
    ids[0] = 987_654
    return [dataclasses.replace(blocks[0], ids=ids), *blocks[1:]]


@pytest.fixture
def audited(embedded):
    """Function: the report of an audit through a fault, and the blocks of the stream that it changes."""

    def run(fault):
        streams = EpochOfStreams(
            client=Faulty(embedded, fault), dataset=embedded.get_dataset("rows"), epoch=1, seed=2, topology=TOPOLOGY
        )
        return streams.audit(), list(embedded.stream_bins("rows", epoch=1, seed=2, rank=1, worker=0, topology=TOPOLOGY))

    return run


def test_without_a_fault_nothing_is_wrong(audited):
    report, _ = audited(lambda blocks: blocks)
    assert report.problems == []


def named(report, what):
    (line,) = [problem for problem in report.problems if problem.startswith(f"{what}: ")]
    return line.removeprefix(f"{what}: ").partition(" and ")[0].split(", ")


def test_a_lost_block_is_named(audited):
    report, blocks = audited(lose_a_block)
    lost = sorted(blocks[2].ids.tolist())
    assert named(report, "missing") == [str(i) for i in lost[:10]]
    assert f"and {len(lost) - 10} more" in " ".join(report.problems)
    assert any(f"{2000 - len(lost):,} sequences" in problem for problem in report.problems)
    assert any(problem.startswith("rank 1 got ") for problem in report.problems)


def test_a_repeated_block_is_named(audited):
    report, blocks = audited(repeat_a_block)
    assert named(report, "repeated") == [str(i) for i in sorted(blocks[1].ids.tolist())[:10]]
    assert not any(problem.startswith("missing") for problem in report.problems)


def test_an_id_that_takes_another_s_place_is_named(audited):
    report, blocks = audited(swap_an_id)
    assert named(report, "missing") == [str(blocks[0].ids[0])]
    assert named(report, "repeated") == [str(blocks[1].ids[0])]
    report, blocks = audited(invent_an_id)
    assert named(report, "not of this epoch") == ["987654"]


def test_an_overfull_bin_is_named(audited):
    report, _ = audited(overfill_a_bin)
    assert any("tokens, over 256" in problem for problem in report.problems)


@pytest.mark.parametrize("fault", [lose_a_block, repeat_a_block, swap_an_id])
def test_the_command_exits_with_1_and_names_the_ids(packhorse, corpus, monkeypatch, fault):
    def faulty(target, timeout_seconds):
        return Faulty(connect(target), fault)

    monkeypatch.setattr("packhorse.cli.shared.service.asking", faulty)
    flags = ["--world-size", 2, "--workers-per-rank", 2, "--batch-size", 3]
    result = packhorse("audit", "--target", f"embedded:{corpus.root}", "rows", *flags)
    assert result.exit_code == 1
    assert result.stdout.endswith("exactly once: no\n")
    wrong = [line for line in result.stderr.splitlines() if line.startswith("WRONG: ")]
    assert any("missing: " in line or "repeated: " in line for line in wrong)


def test_memory_does_not_hold_the_ids_of_a_sound_epoch(embedded, monkeypatch):
    """Blocks may be collected as soon as they are read."""
    import gc
    import weakref

    class Watched(BinBlock):
        pass

    alive = []
    most = 0

    def watch(blocks):
        nonlocal most
        for block in blocks:
            copy = Watched(**{name: getattr(block, name) for name in BinBlock.__slots__})
            alive.append(weakref.ref(copy))
            gc.collect(0)
            most = max(most, sum(ref() is not None for ref in alive))
            yield copy
            del copy

    info = embedded.get_dataset("rows")
    streams = EpochOfStreams(client=Faulty(embedded, watch), dataset=info, epoch=0, seed=0, topology=TOPOLOGY)
    assert streams.audit().problems == []
    assert len(alive) > 3
    assert most <= 2


@pytest.mark.parametrize("remainder", ["spread", "drop", "repeat", "empty"])
@pytest.mark.parametrize("balance", ["micro-step", "optimizer-step"])
def test_balanced_epochs_with_skips_are_exactly_once(packhorse, target, client, balance, remainder):
    shape = [
        "--world-size",
        3,
        "--workers-per-rank",
        2,
        "--batch-size",
        5,
        "--accumulation",
        4,
        "--remainder",
        remainder,
    ]
    skip = ["--skip", "20:31", "--skip", "2:4,100:101"]
    flags = [*shape, "--balance", balance, "--cost-linear", 100, *skip, "--start-position", 7, "--seed", 6]
    result = packhorse("audit", "--target", target, "rows", *flags)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    found = dict(re.findall(r"left out on purpose by (.*): (\d+ sequences in \d+ bins)", result.stdout))
    skipped = [*range(2, 4), *range(20, 31), 100]
    num_sequences = len(client.get_bins("rows", seed=6, positions=skipped).ids)
    assert found["--skip"] == f"{num_sequences} sequences in 14 bins"
    assert set(found) == {"--skip", "--start-position"} | ({"--remainder drop"} if remainder == "drop" else set())
    rest = 2000 - sum(int(each.partition(" ")[0]) for each in found.values())
    assert result.stdout.endswith(f"\nthe other {rest:,} sequences came exactly once\n")


def test_an_audit_of_an_epoch_that_is_skipped_is_no_success(packhorse, corpus):
    result = packhorse("audit", "--target", f"embedded:{corpus.root}", "few", "--skip", "0:1000")
    assert result.exit_code == 1
    assert re.search(r"nothing was audited: --skip 0:1000 leaves out all \d+ bins", result.stderr)


@pytest.mark.parametrize("fault", [lose_a_block, repeat_a_block, swap_an_id])
def test_faults_are_named_beside_skips_and_balance(embedded, fault):
    topology = dataclasses.replace(TOPOLOGY, balance="optimizer-step", accumulation=2)
    info = embedded.get_dataset("rows")
    streams = EpochOfStreams(
        client=Faulty(embedded, fault),
        dataset=info,
        epoch=1,
        seed=2,
        topology=topology,
        skip=Skips.of([(10, 15)]),
    )
    report = streams.audit()
    assert any(problem.startswith(("missing: ", "repeated: ")) for problem in report.problems)
    assert report.left_out["skip"].bins == 5


def test_tokens_are_compared(packhorse, target, corpus):
    flags = ["--tokens", corpus.megatron.with_suffix(".idx"), "--world-size", 2, "--batch-size", 4]
    result = packhorse("audit", "--target", target, "rows", *flags)
    assert result.exit_code == 0, result.output
    tokens = sum(map(len, corpus.sequences))
    assert f"{tokens:,} tokens of the source in batches, {tokens - 2000:,} targets" in result.stdout
    assert result.stdout.endswith("exactly once: yes\nevery token as in its source: yes\n")


def test_tokens_that_are_not_those_of_the_dataset_are_named(packhorse, target, corpus, tmp_path):
    from packhorse.formats import MegatronWriter

    sequences = [*corpus.sequences]
    sequences[11] = sequences[11] + 1
    with MegatronWriter(tmp_path / "other", vocab_size=60_001) as writer:
        for tokens in sequences:
            writer.append(tokens)
    flags = ["--tokens", tmp_path / "other.idx", "--against", corpus.megatron.with_suffix(".idx")]
    result = packhorse("audit", "--target", target, "rows", *flags)
    assert result.exit_code == 1
    (wrong,) = result.stderr.splitlines()
    assert wrong.startswith("WRONG: sequence 11, token 0: input_ids hold ")
    assert result.stdout.endswith("exactly once: yes\nevery token as in its source: no\n")


def test_truncated_tokens_are_those_of_the_ledger(packhorse, corpus):
    flags = ["--tokens", corpus.megatron.with_suffix(".idx")]
    result = packhorse("audit", "--target", f"embedded:{corpus.root}", "truncated", *flags)
    assert result.exit_code == 1  # the source has 2,000 sequences, 400 of which were prepared
    cut = sum(max(len(tokens) - 96, 0) for tokens in corpus.sequences[:400])
    assert f"cut off by --over-length truncate: {cut:,} tokens" in result.stdout
    assert re.search("holds 2,000 sequences, but 400 came: no batch holds the ids 400, 401, ", result.stderr)


def test_rows_that_prepare_skipped_are_told_of(packhorse, tmp_path):
    rows = pa.table({"input_ids": [[1, 2, 3], None, [4, 5], [], [6] * 8, [7, 8]]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", max_seq_len=8, output=tmp_path / "root" / "rows", on_bad_row="skip")
    flags = ["--target", f"embedded:{tmp_path / 'root'}", "rows", "--tokens", tmp_path / "rows.parquet"]
    result = packhorse("audit", *flags)
    assert result.exit_code == 0, result.output
    assert "15 tokens of the source in batches" in result.stdout
    reasons = {"the length is below 1 token": 1, "the length is null": 1}
    with connect(f"embedded:{tmp_path / 'root'}") as client:
        assert client.get_dataset("rows").skipped_by_reason == reasons
    said = ", ".join(f"{count} where {reason}" for reason, count in reasons.items())
    assert f"skipped of rows.parquet: 2 rows, {said}" in result.stdout

    pq.write_table(pa.concat_tables([rows, rows.slice(0, 1)]), tmp_path / "rows.parquet")
    result = packhorse("audit", *flags)
    assert result.exit_code == 1
    assert "holds 7 sequences, but 4 came and 2 rows were skipped: no batch holds the ids 1, 3, 6" in result.stderr


def test_flags_about_tokens_want_tokens(packhorse):
    result = packhorse("audit", "rows", "--eos-token-id", 2)
    assert result.exit_code == 2
    assert "--eos-token-id belongs to --tokens; give --tokens as well" in result.stderr
