"""Groups whose prefixes take room once, from `prepare` to the batch: the plan, the audits, resuming and takedowns."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from packhorse.cli import main
from packhorse.client import BatchFormat, PackedDataset, Topology, connect
from packhorse.dataset import open_prepared
from packhorse.formats.megatron import MegatronWriter
from packhorse.prepare import Grouping, InputColumns, PlanOptions, prepare
from packhorse.proof import EpochOfStreams
from packhorse.rollouts import TreeBatch, prefix_sharing

GROUP_SIZE, CAPACITY = 4, 64


def sequences_of(num_groups, seed=0):
    """Groups of answers to a prompt; some answers are equal, and some begin alike."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(num_groups):
        prompt = random.integers(0, 50, random.integers(1, 25)).tolist()
        found += [[*prompt, *random.integers(0, 2, random.integers(0, 9)).tolist()] for _ in range(GROUP_SIZE)]
    return found


def written(path, sequences):
    with MegatronWriter(path, vocab_size=100, overwrite=True) as writer:
        for sequence in sequences:
            writer.append(np.array(sequence))
    return f"{path}.idx"


def nodes_of(group):
    """Distinct tokens of a group's tree, where each of equal sequences has an end of its own."""
    nodes, total = set(), 0
    for sequence in group:
        own = {(*sequence[: end + 1], *sequence[end + 1 : end + 2], end) for end in range(len(sequence))}
        total += max(len(own - nodes), 1)
        nodes |= own
    return total


SEQUENCES = sequences_of(60)


@pytest.fixture(scope="module")
def sequences():
    return SEQUENCES


@pytest.fixture(scope="module")
def root(tmp_path_factory, sequences):
    folder = tmp_path_factory.mktemp("prefixes")
    tokens = written(folder / "answers", sequences)
    grouping = Grouping(size=GROUP_SIZE, share_prefixes=tokens)
    prepare(tokens, output=folder / "sets/trees", plan=PlanOptions(max_seq_len=CAPACITY), grouping=grouping)
    return folder


def dataset_of(root, batch_size=2, **form):
    options = BatchFormat(shared_prefix="tree", **form)
    return PackedDataset(
        f"embedded:{root}/sets", "trees", str(root / "answers.idx"), batch_size=batch_size, rank=(0, 1), batch=options
    )


def test_a_group_takes_the_room_of_its_distinct_tokens(root, sequences):
    manifest = open_prepared(root / "sets/trees").manifest
    groups = [sequences[first : first + GROUP_SIZE] for first in range(0, len(sequences), GROUP_SIZE)]
    assert manifest.shares_prefixes
    assert manifest.own_tokens == sum(map(nodes_of, groups)) < 0.6 * sum(map(len, sequences))
    assert manifest.num_sequences == len(sequences)
    assert manifest.groups.shared_tokens == sum(map(len, sequences)) - manifest.own_tokens
    assert manifest.num_bins < sum(map(len, sequences)) / CAPACITY  # fewer than any plan of whole sequences has


def test_batches_hold_every_sequence_whole(root, sequences):
    seen = []
    batches = list(dataset_of(root))
    for batch in batches:
        assert isinstance(batch, TreeBatch)
        assert batch["input_ids"].shape[1] == CAPACITY
        tokens, ends = batch["input_ids"].tolist(), batch["subtree_ends"].tolist()
        leaves = [
            [row[key] for key in range(at + 1) if row_ends[key] > at]
            for row, row_ends, is_token in zip(tokens, ends, batch["attention_mask"].tolist(), strict=True)
            for at in range(sum(is_token))
            if row_ends[at] == at + 1
        ]
        for index, length in zip(batch["ids"].tolist(), batch["lengths"].tolist(), strict=True):
            assert sequences[index] in leaves
            assert length == len(sequences[index])
        assert int((batch["token_index"] >= 0).sum()) == sum(len(sequences[i]) - 1 for i in batch["ids"].tolist())
        seen += batch["ids"].tolist()
    assert sorted(seen) == list(range(len(sequences)))
    assert prefix_sharing(batches).num_tokens == sum(map(len, sequences))


def test_a_run_resumes_and_audits_count_leaves(root, sequences):
    batches = list(dataset_of(root))
    resumed = dataset_of(root, batch_size=3)
    resumed.load_state_dict(batches[2]["cursor"])
    rest = [index for batch in resumed for index in batch["ids"].tolist()]
    before = [index for batch in batches[:3] for index in batch["ids"].tolist()]
    assert sorted(before + rest) == list(range(len(sequences)))
    with connect(f"embedded:{root}/sets") as client:
        info = client.get_dataset("trees")
        assert info.shares_prefixes
        streams = EpochOfStreams(client=client, dataset=info, epoch=0, seed=3, topology=Topology(world_size=3))
        report = streams.audit()
        assert (report.problems, report.sequences) == ([], len(sequences))


def test_a_bin_costs_what_its_tokens_attend_to(root):
    """As ranks are balanced: 2 · depth + 1 and the linear cost for each distinct token."""
    source = open_prepared(root / "sets/trees").epoch(0, seed=0)
    batches = list(dataset_of(root, batch_size=1))
    costs = sorted(source.costs(np.arange(source.num_bins), 100).tolist())
    of_trees = []
    for batch in batches:
        depths = batch["position_ids"][0][batch["attention_mask"][0] == 1]
        again = 0  # of equal sequences each has an end of its own in the plan, and trees have one
        whole = batch["lengths"].tolist()
        known = set()
        for index, length in zip(batch["ids"].tolist(), whole, strict=True):
            tokens = (index // GROUP_SIZE, tuple(SEQUENCES[index]))
            again += (2 * (length - 1) + 101) if tokens in known else 0
            known.add(tokens)
        of_trees.append(int((2 * depths + 101).sum()) + again)
    assert sorted(of_trees) == costs


def test_commands_verify_and_audit_the_tokens(root):
    tokens = str(root / "answers.idx")
    target = ["--target", f"embedded:{root}/sets"]
    for arguments in (
        ["audit", "trees", *target, "--tokens", tokens],
        ["verify", f"{root}/sets/trees"],
        ["verify", f"{root}/sets/trees", "--tokens", tokens],
        ["inspect", f"{root}/sets/trees"],
        ["show", "trees", *target, "--step", "0"],
    ):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, (arguments, result.output)


def test_other_tokens_are_noticed(root, sequences, tmp_path):
    other = [[token + 1 + index % GROUP_SIZE for token in sequence] for index, sequence in enumerate(sequences)]
    dataset = PackedDataset(
        f"embedded:{root}/sets",
        "trees",
        written(tmp_path / "other", other),
        batch_size=2,
        rank=(0, 1),
        batch=BatchFormat(shared_prefix="tree"),
    )
    with pytest.raises(ValueError, match="other tokens than those"):
        list(dataset)


def test_plain_batches_and_presets_are_refused_and_trl_async_is_not(root):
    target, tokens = f"embedded:{root}/sets", str(root / "answers.idx")
    for options in ({}, {"preset": "rows"}, {"batch": BatchFormat(shared_prefix=True)}):
        with pytest.raises(ValueError, match=r"give BatchFormat\(shared_prefix='tree'\) or preset 'trl_async'"):
            next(iter(PackedDataset(target, "trees", tokens, batch_size=2, rank=(0, 1), **options)))
    trees = dataset_of(root)
    presets = PackedDataset(target, "trees", tokens, batch_size=2, rank=(0, 1), preset="trl_async")
    for one, other in zip(trees, presets, strict=True):
        assert int(one["attention_mask"].sum()) == int(other["attention_mask"].sum())
        assert one["cursor"] == other["cursor"]


def test_a_redacted_sequence_leaves_what_others_share(root, sequences, tmp_path):
    target = tmp_path / "root"
    prepare(
        str(root / "answers.idx"),
        output=target / "trees",
        plan=PlanOptions(max_seq_len=CAPACITY),
        grouping=Grouping(size=GROUP_SIZE, share_prefixes=str(root / "answers.idx")),
    )
    (target / "trees.takedown.toml").write_text("[[redact]]\nids = [5]\ntoken = 77\n")
    [batch] = [
        batch
        for batch in PackedDataset(
            f"embedded:{target}",
            "trees",
            str(root / "answers.idx"),
            batch_size=1,
            rank=(0, 1),
            batch=BatchFormat(shared_prefix="tree"),
        )
        if 5 in batch["ids"].tolist()
    ]
    at = batch["ids"].tolist().index(5)
    assert not (batch["sequence_index"] == at).any()
    assert int(batch["attention_mask"].sum()) <= CAPACITY
    others = [index for index in batch["ids"].tolist() if index != 5]
    tokens, labels = batch["input_ids"].flatten(), batch["labels"].flatten()
    for index in others:
        positions = batch["token_index"][batch["sequence_index"] == batch["ids"].tolist().index(index)]
        assert tokens[positions].tolist() == sequences[index][:-1]
        assert labels[positions].tolist() == sequences[index][1:]
    assert 77 in tokens.tolist()


def test_a_group_that_does_not_fit_is_left_out_with_all_of_its_tokens(tmp_path):
    long = [[*range(1, 41), *([end] * 20)] for end in range(4)]  # 40 shared, 4 × 20 own: 120 or so distinct
    tokens = written(tmp_path / "some", [*SEQUENCES[:8], *long])
    grouping = Grouping(size=GROUP_SIZE, share_prefixes=tokens)
    plan = PlanOptions(max_seq_len=CAPACITY, over_length="drop")
    prepare(tokens, output=tmp_path / "set", plan=plan, grouping=grouping)
    ledger = open_prepared(tmp_path / "set").manifest.over_length
    assert (ledger.sequences, ledger.tokens, ledger.source_tokens) == (4, 240, 240)
    for arguments in (["verify", str(tmp_path / "set"), "--tokens", tokens], ["audit", "set", "--tokens", tokens]):
        target = ["--target", f"embedded:{tmp_path}"] if arguments[0] == "audit" else []
        result = CliRunner().invoke(main, [*arguments, *target])
        assert result.exit_code == 0, result.output


def test_groups_are_appended_as_they_would_be_at_once(tmp_path):
    sequences = sequences_of(20, seed=5)
    plan, some = PlanOptions(max_seq_len=CAPACITY), tmp_path / "some"
    grouping = Grouping(size=GROUP_SIZE, share_prefixes=written(some, sequences[:40]))
    prepare(f"{some}.idx", output=tmp_path / "set", plan=plan, grouping=grouping)
    grouping = Grouping(size=GROUP_SIZE, share_prefixes=written(some, sequences))  # it has grown
    prepare(f"{some}.idx", output=tmp_path / "set", plan=plan, grouping=grouping, append=True)
    prepare(f"{some}.idx", output=tmp_path / "whole", plan=plan, grouping=grouping)
    one, other = (open_prepared(tmp_path / name).manifest for name in ("set", "whole"))
    assert (one.own_tokens, one.num_sequences, one.ids_sum_a) == (
        other.own_tokens,
        other.num_sequences,
        other.ids_sum_a,
    )
    assert (one.shares_prefixes, one.version) == (True, 2)
    written(some, [*sequences, *sequences[:4]])
    with pytest.raises(ValueError, match="sharing prefixes"):
        prepare(f"{some}.idx", output=tmp_path / "set", plan=plan, grouping=Grouping(size=GROUP_SIZE), append=True)


def test_a_sequence_that_grew_by_shared_tokens_only_does_not_continue_a_dataset(tmp_path):
    """It keeps as many tokens of its own as before, so only the number of its first one tells."""
    plan, file = PlanOptions(max_seq_len=16), tmp_path / "file"
    grouping = Grouping(size=2, share_prefixes=written(file, [[1, 2, 3, 4, 5], [1, 2, 9]]))
    prepare(f"{file}.idx", output=tmp_path / "set", plan=plan, grouping=grouping)
    written(file, [[1, 2, 3, 4, 5], [1, 2, 3, 9], [7], [8]])
    with pytest.raises(ValueError, match="does not hold what set was prepared from"):
        prepare(f"{file}.idx", output=tmp_path / "set", plan=plan, grouping=grouping, append=True)


def test_the_tokens_may_be_an_array_of_rows(tmp_path):
    rows = np.array([[1, 2, 3], [1, 2, 4], [5, 6, 7], [5, 8, 9]])
    grouping = Grouping(size=2, share_prefixes=rows)
    manifest = prepare(
        lengths=np.full(4, 3), output=tmp_path / "set", plan=PlanOptions(max_seq_len=8), grouping=grouping
    )
    assert manifest.groups.shared_tokens == 1  # of two equal tokens the last predicts different ones, and stands twice


def test_the_tokens_may_be_those_of_the_input(root, tmp_path):
    plan, grouping = PlanOptions(max_seq_len=CAPACITY), Grouping(size=GROUP_SIZE, share_prefixes="input")
    manifest = prepare(str(root / "answers.idx"), output=tmp_path / "set", plan=plan, grouping=grouping)
    assert manifest.digest == open_prepared(root / "sets/trees").manifest.digest
    for arguments in ({"lengths": np.array([3, 4])}, {"input": [str(root / "answers.idx")] * 2}):
        with pytest.raises(ValueError, match="share_prefixes='input' needs one Megatron file as input"):
            prepare(**arguments, output=tmp_path / "other", plan=plan, grouping=grouping)


@pytest.mark.parametrize(
    ("plan", "columns", "match"),
    [
        ({"align": 8}, {}, "share_prefixes goes without align, extra_tokens and resources"),
        ({"extra_tokens": 1}, {}, "share_prefixes goes without align, extra_tokens and resources"),
    ],
)
def test_what_does_not_go_together_is_refused(root, tmp_path, plan, columns, match):
    tokens = str(root / "answers.idx")
    with pytest.raises(ValueError, match=match):
        prepare(
            tokens,
            output=tmp_path / "set",
            plan=PlanOptions(max_seq_len=CAPACITY, **plan),
            columns=InputColumns(**columns),
            grouping=Grouping(size=GROUP_SIZE, share_prefixes=tokens),
        )
    assert not (tmp_path / "set").exists()


def test_tokens_of_other_lengths_are_refused_with_the_row(root, tmp_path, sequences):
    other = written(tmp_path / "other", [*sequences[:9], [1, 2, 3, *sequences[9]], *sequences[10:]])
    with pytest.raises(ValueError, match=r"share_prefixes has \d+ tokens for sequence 9 \(row 9\), whose length is"):
        prepare(
            str(root / "answers.idx"),
            output=tmp_path / "set",
            plan=PlanOptions(max_seq_len=CAPACITY),
            grouping=Grouping(size=GROUP_SIZE, share_prefixes=other),
        )


def test_the_command_takes_the_flag(root, tmp_path, packhorse):
    tokens = str(root / "answers.idx")
    options = ["--max-seq-len", CAPACITY, "--group-size", GROUP_SIZE, "--share-prefixes", tokens]
    done = packhorse("prepare", "--input", tokens, "--output", tmp_path / "set", *options)
    assert done.exit_code == 0, done.stderr
    assert open_prepared(tmp_path / "set").manifest.digest == open_prepared(root / "sets/trees").manifest.digest
    assert json.loads((tmp_path / "set/manifest.json").read_text())["groups"]["shared_tokens"] > 0
    assert "tokens stand in another of their group" in done.stdout + done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("train ")]
    names = {"create_packed_dataloader": PackedDataset, "BatchFormat": BatchFormat}
    assert all(isinstance(batch, TreeBatch) for batch in eval(line.split(maxsplit=1)[1], names))


def test_a_mixture_refuses_it(root, tmp_path):
    (root / "sets/both.mixture.toml").write_text("epoch_bins = 8\n[[stages]]\nweights = {trees = 1}\n")
    try:
        with (
            connect(f"embedded:{root}/sets") as client,
            pytest.raises(Exception, match="groups of trees share prefixes"),
        ):
            client.get_dataset("both")
    finally:
        (root / "sets/both.mixture.toml").unlink()


def test_a_tree_of_equal_tokens_is_what_torch_saves(root, tmp_path):
    batch = next(iter(dataset_of(root)))
    torch.save(batch, tmp_path / "batch.pt")
    assert torch.equal(torch.load(tmp_path / "batch.pt", weights_only=True)["input_ids"], batch["input_ids"])
