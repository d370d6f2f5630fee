"""Tokens from the server: the same batches as with files, for every kind of plan, topology and fault."""

import hashlib
import json
import shutil
from functools import partial
from urllib.request import urlopen

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.chaos.proxy import Proxy
from tests.faulty_server import Faults

from packhorse.cli import main
from packhorse.client import BatchFormat, PackedBins, PackedDataset, RetryPolicy, connect
from packhorse.client.batches import Separators
from packhorse.client.errors import AccessDeniedError, TokensNotServedError
from packhorse.formats import MegatronWriter
from packhorse.formats.megatron import MaskedTokenWriter
from packhorse.prepare import Grouping, InputColumns, PlanOptions, prepare
from packhorse.server.access.bearer_tokens import Grant, hash_of, new_token

RNG = np.random.default_rng(11)
DOCUMENTS = [RNG.integers(0, 60_000, n) for n in RNG.integers(2, 30, 120)]
PLANS = {
    "plain": {"max_seq_len": 32},
    "aligned": {"max_seq_len": 32, "align": 4},
    "separated": {"max_seq_len": 32, "extra_tokens": 2, "over_length": "truncate"},
    "without-last": {"max_seq_len": 32, "extra_tokens": -1},
    "cut": {"max_seq_len": 12, "over_length": "truncate"},
    "tail": {"max_seq_len": 12, "over_length": "truncate", "keep": "tail"},
    "pieces": {"max_seq_len": 12, "over_length": "split"},
    "dropped": {"max_seq_len": 12, "over_length": "drop"},
}


def written(prefix, documents, *, masked=False, vocab_size=60_000):
    """A Megatron pair, with a loss mask beside it if `masked`."""
    if not masked:
        with MegatronWriter(prefix, vocab_size=vocab_size) as writer:
            for document in documents:
                writer.append(document)
        return f"{prefix}.idx"
    with MaskedTokenWriter(prefix, vocab_size=vocab_size) as writer:
        for number, document in enumerate(documents):
            writer.append(document, (np.arange(len(document)) + number) % 3 > 0)
    return f"{prefix}.idx"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A data root with a dataset of each plan, one of them with a mask, and a mixture of two."""
    root = tmp_path_factory.mktemp("served")
    plain = written(root / "plain-tokens", DOCUMENTS)
    masked = written(root / "masked-tokens", DOCUMENTS, masked=True, vocab_size=90_000)
    for name, options in PLANS.items():
        for source, kind in ((plain, name), (masked, f"{name}-masked")):
            prepare(source, output=root / "sets" / kind, plan=PlanOptions(**options))
    text = "epoch_bins = 12\n[[stages]]\nweights = {plain = 1, pieces-masked = 1}\n"
    (root / "sets" / "both.mixture.toml").write_text(text)
    return root


def tokens_of(root, name):
    masked, plain = str(root / "masked-tokens.idx"), str(root / "plain-tokens.idx")
    if name == "both":
        return {"plain": plain, "pieces-masked": masked}
    return masked if name.endswith("masked") else plain


def form_of(name):
    if name.startswith("separated"):
        return BatchFormat(separators=Separators(bos_token_id=7, eos_token_id=9))
    return BatchFormat(shift_labels=True) if name.startswith("without-last") else BatchFormat()


def arrays(batch):
    return {key: value.numpy() for key, value in batch.items() if hasattr(value, "numpy")}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for key, value in arrays(one).items():
        np.testing.assert_array_equal(value, arrays(other)[key], err_msg=key)


NAMES = [*PLANS, *(f"{name}-masked" for name in PLANS), "both"]


@pytest.mark.parametrize("name", NAMES)
def test_batches_are_those_of_the_files(root, name):
    target = f"embedded:{root / 'sets'}"
    options = {"batch_size": 3, "seed": 5, "batch": form_of(name)}
    own = PackedDataset(target, name, tokens_of(root, name), **options)
    sent = PackedDataset(target, name, **options)
    for epoch in (0, 3):
        own.set_epoch(epoch), sent.set_epoch(epoch)
        pairs = list(zip(own, sent, strict=True))
        assert pairs
        for mine, theirs in pairs:
            assert_same(mine, theirs)
            assert mine["cursor"] == theirs["cursor"]


@pytest.mark.parametrize("name", NAMES)
def test_random_access_too(root, name):
    target = f"embedded:{root / 'sets'}"
    own = PackedBins(target, name, tokens_of(root, name), seed=2, batch=form_of(name), num_epochs=2)
    sent = PackedBins(target, name, seed=2, batch=form_of(name), num_epochs=2)
    order = RNG.permutation(len(own)).tolist()
    for index in order[:20]:
        assert_same(own[index], sent[index])
    assert_same(own.collate(own.__getitems__(order)), sent.collate(sent.__getitems__(order)))


def test_no_mask_is_meant(root):
    batch = next(
        iter(
            PackedDataset(f"embedded:{root / 'sets'}", "plain-masked", batch_size=1, batch=BatchFormat(loss_mask=None))
        )
    )
    assert (batch["labels"] == -100).sum() == len(batch["ids"]) + (batch["attention_mask"] == 0).sum()


def test_a_dataset_says_what_it_sends(root):
    with connect(f"embedded:{root / 'sets'}") as client:
        facts = {info.name: (info.has_tokens, info.has_loss_mask) for info in client.list_datasets()}
    assert facts["plain"] == (True, False)
    assert facts["plain-masked"] == facts["both"] == (True, True)


def test_the_server_says_why_it_sends_none(root, tmp_path):
    shutil.copytree(root / "sets" / "plain", tmp_path / "sets" / "plain")
    with pytest.raises(TokensNotServedError, match=r"^the tokens of 'plain' are not served: they cannot be opened"):
        next(iter(PackedDataset(f"embedded:{tmp_path / 'sets'}", "plain", batch_size=1)))


def test_other_tokens_of_the_same_lengths_are_refused(root, tmp_path):
    shutil.copytree(root / "sets" / "plain", tmp_path / "sets" / "plain")
    written(tmp_path / "plain-tokens", [document + 1 for document in DOCUMENTS], vocab_size=60_001)
    with pytest.raises(TokensNotServedError, match="not those of the plan"):
        next(iter(PackedDataset(f"embedded:{tmp_path / 'sets'}", "plain", batch_size=1)))


@pytest.fixture(scope="module")
def server(root, make_server):
    with make_server(root / "sets", "--tokens") as server:
        yield server


def digest_of(batches):
    """md5 of every token of some batches, in their order."""
    found = hashlib.md5()
    for batch in batches:
        found.update(batch["input_ids"].numpy().tobytes() + batch["labels"].numpy().tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("name", ["pieces-masked", "both", "plain"])
def test_a_real_server_sends_them_to_workers(server, root, name, load):
    dataset = PackedDataset(server.target, name, batch_size=2, seed=9, rank=(1, 2))
    own = PackedDataset(server.target, name, tokens_of(root, name), batch_size=2, seed=9, rank=(1, 2))
    assert digest_of(load(dataset, num_workers=2)) == digest_of(load(own))


@pytest.mark.parametrize("num_resumes", [40, pytest.param(1000, marks=pytest.mark.long)])
def test_random_resumes_under_any_topology_continue_alike(root, num_resumes):
    target, rng = f"embedded:{root / 'sets'}", np.random.default_rng(4)
    for _ in range(num_resumes):
        name = str(rng.choice(["pieces-masked", "plain", "cut", "both"]))
        world, batch_size, seed = (int(rng.integers(1, 5)) for _ in range(3))
        options = {"batch_size": batch_size, "seed": seed, "rank": (int(rng.integers(world)), world)}
        own, sent = (PackedDataset(target, name, tokens, **options) for tokens in (tokens_of(root, name), None))
        cursor = next(iter(PackedDataset(target, name, tokens_of(root, name), batch_size=1, seed=seed)))["cursor"]
        cursor |= {"position": int(rng.integers(10)), "epoch": int(rng.integers(2))}
        own.load_state_dict(cursor), sent.load_state_dict(cursor)
        assert digest_of(own) == digest_of(sent)


@pytest.mark.parametrize("fault", ["cuts", "flips"])
def test_a_network_that_cuts_or_alters_bytes_loses_nothing(server, root, fault):
    retry = RetryPolicy(deadline_seconds=20, first_delay_seconds=0.01, most_delay_seconds=0.1)
    own = PackedDataset(server.target, "pieces-masked", tokens_of(root, "x-masked"), batch_size=2, seed=8)
    expected = digest_of(own)
    for at in range(300, 9000, 600):
        with Proxy(server.target) as proxy:
            proxy.cut_after_bytes = [at, at // 2 + 300] if fault == "cuts" else []
            proxy.flips = [(at, 16)] if fault == "flips" else []
            sent = PackedDataset(partial(connect, proxy.target, retry=retry), "pieces-masked", batch_size=2, seed=8)
            assert digest_of(sent) == expected


def test_replicas_that_are_killed_in_turn_lose_nothing(root, make_server):
    faults = Faults(steps_per_block=1)
    with (
        make_server(root / "sets", "--tokens", faults=faults) as one,
        make_server(root / "sets", "--tokens", faults=faults) as other,
    ):
        sent = PackedDataset(f"{one.target},{other.target}", "both", batch_size=1, seed=3)
        batches = []
        for number, batch in enumerate(sent):
            batches.append(batch)
            if number in (2, 6):
                server = one if number == 2 else other
                server.kill()
                server.start()
    own = PackedDataset(f"embedded:{root / 'sets'}", "both", tokens_of(root, "both"), batch_size=1, seed=3)
    assert digest_of(batches) == digest_of(own)


def test_a_kill_loses_and_repeats_nothing(root, make_server):
    with make_server(root / "sets", "--tokens", faults=Faults(steps_per_block=1)) as server:
        dataset = PackedDataset(server.target, "pieces-masked", batch_size=1, seed=3)
        batches = []
        for number, batch in enumerate(dataset):
            batches.append(batch)
            if number == 5:
                server.kill()
                server.start()
    own = PackedDataset(f"embedded:{root / 'sets'}", "pieces-masked", tokens_of(root, "x-masked"), batch_size=1, seed=3)
    assert digest_of(batches) == digest_of(own)


def test_a_corpus_that_changes_withdraws_its_tokens_and_not_its_ids(root, tmp_path, make_server):
    shutil.copytree(root / "sets" / "plain", tmp_path / "sets" / "plain")
    written(tmp_path / "plain-tokens", DOCUMENTS)
    flags = ("--tokens", "--metrics-listen", "127.0.0.1:0")
    with make_server(tmp_path / "sets", *flags, faults=Faults(steps_per_block=1)) as server:
        stream = iter(PackedDataset(server.target, "plain", batch_size=1))
        next(stream)
        path = tmp_path / "plain-tokens.bin"
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(TokensNotServedError, match="changed while it was served"):
            list(stream)
        whole = written(tmp_path / "whole", DOCUMENTS)
        assert len(list(PackedDataset(server.target, "plain", whole, batch_size=1)))
        with urlopen(f"{server.metrics_url}") as page:
            lines = page.read().decode().splitlines()
        assert any("unusable" in line and 'kind="corpus",name="plain"} 1.0' in line for line in lines)
        with connect(server.target) as client:
            assert not client.get_dataset("plain").has_tokens


def test_a_server_without_tokens_says_the_way_out(running_server):
    with pytest.raises(TokensNotServedError, match="packhorse serve --tokens`, or give the loader tokens="):
        next(iter(PackedDataset(running_server.target, "rows", batch_size=1)))


def test_tables_are_served_by_their_ids(root, tmp_path, make_server):
    """Parquet with an id column: named, since its manifest does not say where its tokens are."""
    rows = {"doc": np.arange(len(DOCUMENTS)) * 3 + 1, "input_ids": [document.tolist() for document in DOCUMENTS]}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet", row_group_size=16)
    columns = InputColumns(id="doc")
    prepare(tmp_path / "rows.parquet", output=tmp_path / "sets" / "rows", max_seq_len=32, columns=columns)
    (tmp_path / "tokens.toml").write_text(f'[tokens]\nrows = "{tmp_path / "rows.parquet"}"\n')
    with make_server(tmp_path / "sets", "--tokens", tmp_path / "tokens.toml") as server:
        sent = list(PackedDataset(server.target, "rows", batch_size=2, seed=1))
    own = PackedDataset(f"embedded:{tmp_path / 'sets'}", "rows", str(tmp_path / "rows.parquet"), batch_size=2, seed=1)
    assert digest_of(sent) == digest_of(own)


def test_what_is_taken_down_does_not_leave_the_server(root, tmp_path):
    shutil.copytree(root / "sets" / "plain", tmp_path / "sets" / "plain")
    written(tmp_path / "plain-tokens", DOCUMENTS)
    redactions = "[[redact]]\nids = [3]\ntoken = 61000\nreason = 'asked'\n[[redact]]\nids = [5]\nreason = 'bad'\n"
    (tmp_path / "sets" / "plain.takedown.toml").write_text(redactions)
    target = f"embedded:{tmp_path / 'sets'}"
    with connect(target) as client:
        block = client.get_bins("plain", positions=range(client.get_dataset("plain").num_bins), with_tokens=True)
    tokens = np.empty(int(block.lengths.sum()), np.int64)
    ends = np.cumsum(block.lengths)
    block.tokens.gather_from(block.ids, block.lengths)(0, len(block.ids), tokens, ends - block.lengths)
    for sequence_id, part in zip(block.ids.tolist(), np.split(tokens, ends[:-1]), strict=True):
        expected = np.full(len(part), 61000) if sequence_id == 3 else DOCUMENTS[sequence_id]
        np.testing.assert_array_equal(part, expected)
    own = PackedDataset(target, "plain", str(tmp_path / "plain-tokens.idx"), batch_size=2)
    assert digest_of(PackedDataset(target, "plain", batch_size=2)) == digest_of(own)


@pytest.mark.shelf
def test_trees_come_whole(tmp_path):
    prompts = [RNG.integers(0, 900, 6) for _ in range(8)]
    documents = [np.concatenate((prompts[i // 3], RNG.integers(0, 900, 2 + i % 4))) for i in range(24)]
    source = written(tmp_path / "trees", documents, masked=True, vocab_size=900)
    plan = PlanOptions(max_seq_len=32)
    prepare(source, output=tmp_path / "sets" / "trees", plan=plan, grouping=Grouping(size=3, share_prefixes="input"))
    options = {"batch_size": 2, "batch": BatchFormat(shared_prefix="tree")}
    target = f"embedded:{tmp_path / 'sets'}"
    own, sent = (PackedDataset(target, "trees", tokens, **options) for tokens in (source, None))
    for mine, theirs in zip(own, sent, strict=True):
        assert_same(mine, theirs)


def test_tokens_need_a_right_of_their_own(root, tmp_path, make_server):
    secrets = {name: new_token() for name in ("ids", "text")}
    lines = [
        str(Grant(name, hash_of(secret), methods=("*", *extra)))
        for (name, secret), extra in zip(secrets.items(), [(), ("Tokens",)], strict=True)
    ]
    (tmp_path / "access").write_text("\n".join(lines))
    with make_server(root / "sets", "--tokens", "--token-file", tmp_path / "access") as server:
        options = {"batch_size": 1}
        with pytest.raises(AccessDeniedError, match=r"this token \(ids\) is not for Tokens"):
            next(iter(PackedDataset(partial(connect, server.target, token=secrets["ids"]), "plain", **options)))
        assert len(
            next(iter(PackedDataset(partial(connect, server.target, token=secrets["text"]), "plain", **options)))
        )


@pytest.mark.shelf
@pytest.mark.parametrize("name", ["plain", "pieces-masked", "cut", "aligned", "both"])
def test_an_audit_compares_what_the_server_sends(server, root, name):
    right = tokens_of(root, name)
    right = right if isinstance(right, str) else ",".join(f"{each}={path}" for each, path in right.items())
    arguments = ["audit", name, "--target", server.target, "--tokens", "server"]
    result = CliRunner().invoke(main, [*arguments, "--against", right])
    assert result.exit_code == 0, result.output
    assert "every token as in its source: yes" in result.output
    assert CliRunner().invoke(main, arguments).exit_code == 2


@pytest.mark.shelf
def test_an_audit_reads_what_is_in_no_stream_a_few_bins_at_a_time(server, root, monkeypatch):
    """The tokens of many long bins are more than one answer may hold."""
    monkeypatch.setattr("packhorse.proof.epoch_audit._TOKENS_AT_ONCE", 64)
    words = ["--target", server.target, "--tokens", "server", "--against", tokens_of(root, "plain")]
    result = CliRunner().invoke(main, ["audit", "plain", "--start-position", "5", *words])
    assert result.exit_code == 0, result.output
    assert "every token as in its source: yes" in result.output


@pytest.mark.shelf
def test_an_audit_finds_other_tokens(server, root, tmp_path):
    other = written(tmp_path / "other", [*DOCUMENTS[:-1], DOCUMENTS[-1] + 1], vocab_size=60_001)
    result = CliRunner().invoke(
        main, ["audit", "plain", "--target", server.target, "--tokens", "server", "--against", other]
    )
    assert result.exit_code == 1
    assert f"sequence {len(DOCUMENTS) - 1}" in result.output


def test_a_stream_is_printed_with_its_tokens(server):
    result = CliRunner().invoke(main, ["stream", "plain-masked", "--target", server.target, "--with-tokens"])
    for line in result.output.splitlines():
        bin_ = json.loads(line)
        for sequence_id, tokens, mask in zip(bin_["ids"], bin_["tokens"], bin_["loss_mask"], strict=True):
            assert tokens == DOCUMENTS[sequence_id].tolist()
            assert mask == ((np.arange(len(tokens)) + sequence_id) % 3 > 0).tolist()


def test_an_arrow_file_that_changes_is_noticed(tmp_path):
    rows = datasets.Dataset.from_dict({"input_ids": [document.tolist() for document in DOCUMENTS]})
    rows.save_to_disk(tmp_path / "rows")
    columns = InputColumns(length="input_ids")
    prepare(tmp_path / "rows", output=tmp_path / "sets" / "rows", max_seq_len=32, columns=columns)
    with connect(f"embedded:{tmp_path / 'sets'}") as client:
        assert client.get_bins("rows", positions=[0], with_tokens=True).tokens is not None
        (path,) = (tmp_path / "rows").glob("*.arrow")
        path.write_bytes(path.read_bytes())
        with pytest.raises(TokensNotServedError, match="changed while it was served"):
            client.get_bins("rows", positions=[0], with_tokens=True)
