"""Batches of a mixture of several lengths: rows that are their components' own bins, or long ones."""

import numpy as np
import pytest
import torch
from tests.flat_words import packed_dataset, prepare
from torch.utils.data import DataLoader

from packhorse.dataset import open_prepared
from packhorse.epoch import derive_key
from packhorse.losses import build_loss_weights

LENGTHS = {"short": 16, "middle": 24, "long": 48}
"""Their max_seq_len: 3, 2 and 1 rows of a bin of 48 tokens."""

MIXTURE = """
max_seq_len = 48
epoch_bins = 62
[[stages]]
until_bins = 20
weights = {short = 1}
[[stages]]
until_bins = 40
weights = {middle = 1}
[[stages]]
weights = {short = 2, long = 1}
"""

STEPS = """
max_seq_len = 48
epoch_bins = 60
bins_per_step = 4
draw = "steps"
[[stages]]
weights = {short = 7, middle = 5, long = 3}
"""


@pytest.fixture(scope="module")
def tokens():
    random = np.random.default_rng(5)
    return {
        name: [random.integers(1, 1000, random.integers(1, most + 1)) for _ in range(120)]
        for name, most in LENGTHS.items()
    }


@pytest.fixture(scope="module")
def root(tokens, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    for name, sequences in tokens.items():
        np.save(folder / f"{name}.npy", [len(sequence) for sequence in sequences])
        options = {"max_seq_len": LENGTHS[name], "output": folder / "root" / name, "progress": False, "workers": 1}
        prepare(folder / f"{name}.npy", **options)
    (folder / "root" / "mix.mixture.toml").write_text(MIXTURE)
    (folder / "root" / "steps.mixture.toml").write_text(STEPS)
    return folder / "root"


def batches_of(root, tokens, **options):
    options = {"batch_size": 4, "seed": 1, "rank": 0, "world_size": 1, "component_rows": True} | options
    return packed_dataset(f"embedded:{root}", "mix", tokens, **options)


def rows_of(batch):
    """(component, ids, tokens) of every row."""
    layout, ids = batch["layout"], batch["ids"].tolist()
    starts = np.concatenate(([0], layout.row_ends[:-1])).tolist()
    parts = [ids[a:b] for a, b in zip(starts, layout.row_ends.tolist(), strict=True)]
    return list(zip(batch["bin_component_ids"].tolist(), parts, batch["input_ids"].tolist(), strict=True))


def own_rows(root, tokens, number, epoch=0):
    """The bins of a component's own epoch, padded, in the order in which the mixture takes them."""
    name = list(LENGTHS)[number]
    source = open_prepared(root / name).epoch(epoch, derive_key(1, number, "component"))
    bins = source.bins(np.arange(source.num_bins))
    for ids in np.split(bins.ids, bins.bin_ends[:-1]):
        row = [int(token) for i in ids for token in tokens[name][i]]
        yield number, ids.tolist(), row + [0] * (LENGTHS[name] - len(row))


def test_rows_of_one_component_are_its_own_bins(root, tokens):
    batches = list(batches_of(root, tokens))
    assert [tuple(batch["input_ids"].shape) for batch in batches[:10]] == [(12, 16)] * 5 + [(8, 24)] * 5
    for number, first in ((0, 0), (1, 5)):
        came = [row for batch in batches[first : first + 5] for row in rows_of(batch)]
        own = list(own_rows(root, tokens, number)) + list(own_rows(root, tokens, number, epoch=1))
        num_own = -(-len(own) // 2)
        num_empty = -num_own % (3 - number)  # behind the component's last bin, where it does not come out even
        empty = (-1, [], [0] * list(LENGTHS.values())[number])
        assert came == [*own[:num_own], *[empty] * num_empty, *own[num_own:]][: len(came)]
        assert len(came) == (60, 40)[number]


def test_rows_of_several_components_are_as_short_as_all_allow(root, tokens):
    for batch in list(batches_of(root, tokens))[10:]:
        kinds = set(batch["bin_component_ids"].tolist()) - {-1}
        assert batch["input_ids"].shape[1] == {(0,): 16, (2,): 48, (0, 2): 48}[tuple(sorted(kinds))]
    batches = list(batches_of(root, tokens, batch_size=40))
    assert [tuple(batch["input_ids"].shape) for batch in batches] == [(40, 48), (40, 48)]  # gcd(3, 2) is 1


def test_drawn_steps_have_one_component_and_one_shape_on_all_ranks(root, tokens):
    def batches(**options):
        return list(packed_dataset(f"embedded:{root}", "steps", tokens, seed=1, component_rows=True, **options))

    ranks = [batches(batch_size=2, rank=rank, world_size=2) for rank in range(2)]
    kinds = []
    for step in zip(*ranks, strict=True):
        [kind] = {kind for batch in step for kind in batch["bin_component_ids"].tolist()} - {-1}
        assert {tuple(batch["input_ids"].shape) for batch in step} == {[(6, 16), (4, 24), (2, 48)][kind]}
        kinds.append(kind)
    assert np.bincount(kinds).tolist() == [7, 5, 3]
    assert kinds != sorted(kinds)
    alone = batches(batch_size=4, rank=0, world_size=1)
    together = [[i for batch in step for i in ids_of(batch)] for step in zip(*ranks, strict=True)]
    assert [ids_of(batch) for batch in alone] == together


@pytest.mark.parametrize("remainder", ["spread", "drop", "repeat", "empty"])
def test_rows_hold_what_bins_hold(root, tokens, remainder):
    options = {"remainder": remainder, "rank": 1, "world_size": 3}
    short, long = (list(batches_of(root, tokens, component_rows=each, **options)) for each in (True, False))
    assert len(short) == len(long) > 4
    for one, other in zip(short, long, strict=True):
        assert one["cursor"] == other["cursor"]
        assert one["input_ids"].numel() == other["input_ids"].numel()
        for key in ("ids", "component_ids", "cu_seqlens"):
            assert torch.equal(one[key], other[key])
        is_token = [batch["attention_mask"] == 1 for batch in (one, other)]
        pairs = [(one[key], other[key]) for key in ("input_ids", "labels", "position_ids")]
        for ours, theirs in [*pairs, (build_loss_weights(one), build_loss_weights(other))]:
            assert torch.equal(ours[is_token[0]], theirs[is_token[1]])
    assert {batch["input_ids"].shape[1] for batch in long} == {48}
    assert {batch["input_ids"].shape[1] for batch in short} >= {16, 24}


def test_flattened_batches_are_the_same_in_any_rows(root, tokens):
    short, long = (list(batches_of(root, tokens, component_rows=each, flatten=True)) for each in (True, False))
    assert all(torch.equal(a["input_ids"], b["input_ids"]) for a, b in zip(short, long, strict=True))


def test_a_run_resumes_in_any_stage_under_other_ranks(root, tokens):
    whole = list(DataLoader(batches_of(root, tokens), batch_size=None, num_workers=2))
    for stop in (2, 6, 12):
        parts = []
        for rank in range(2):
            dataset = batches_of(root, tokens, rank=rank, world_size=2, batch_size=2)
            dataset.load_state_dict(whole[stop]["cursor"])
            parts.append(list(dataset))
        rest = [row for pair in zip(*parts, strict=True) for batch in pair for row in ids_of(batch)]
        assert rest == [row for batch in whole[stop + 1 :] for row in ids_of(batch)]


def ids_of(batch):
    return list(zip(batch["component_ids"].tolist(), batch["ids"].tolist(), strict=True))


def test_a_dataset_that_is_no_mixture_is_refused(root, tokens):
    options = {"batch_size": 4, "seed": 1, "rank": 0, "world_size": 1}
    dataset = packed_dataset(f"embedded:{root}", "long", tokens["long"], **options, component_rows=True)
    with pytest.raises(ValueError, match="component_rows has no effect: the dataset is no mixture"):
        next(iter(dataset))
