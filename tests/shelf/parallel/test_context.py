"""Context-parallel layouts: equal to the stacks' own indices, balanced, and inverted."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental._context_parallel import _load_balancer as torch_balancers
from torch.distributed.tensor.experimental._context_parallel._attention import _context_parallel_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from packhorse.parallel import context_parallel_indices

LAYOUTS = ("zigzag", "contiguous", "blocks")
SEGMENTS = st.lists(st.integers(1, 5), min_size=1, max_size=8)


def offsets_of(lengths):
    return torch.tensor([0, *np.cumsum(lengths).tolist()], dtype=torch.int32)


def lognormal_row(rng, num_tokens, mean, sigma):
    ends = np.cumsum(np.maximum(rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, num_tokens), 1).astype(np.int64))
    return torch.tensor([0, *ends[ends < num_tokens].tolist(), num_tokens], dtype=torch.int32)


def work_of_ranks(offsets, index, size):
    """Keys that each rank's queries attend to, counted token by token."""
    keys = torch.cat([torch.arange(1, end - start + 1) for start, end in pairwise(offsets.tolist())])
    return keys[index].view(size, -1).sum(dim=1)


def transformer_engine_indices(offsets, num_tokens, size, rank):
    """What `thd_partition_indices_kernel` of Transformer Engine computes for each token, read in its source."""
    shares = [offset // size for offset in offsets]
    indices = []
    for token in range(num_tokens // size):
        segment = max(i for i in range(len(shares) - 1) if shares[i] <= token)
        held = shares[segment + 1] - shares[segment]
        within = token - shares[segment]
        chunks_before = rank if within < held // 2 else 2 * (size - 1) - rank
        indices.append(shares[segment] * size + within + held // 2 * chunks_before)
    return indices


@given(SEGMENTS, st.sampled_from([2, 3, 4, 8]))
def test_zigzag_is_transformer_engines(units, size):
    offsets = offsets_of([2 * size * n for n in units])
    num_tokens = int(offsets[-1])
    for rank in range(size):
        ours = context_parallel_indices(offsets, num_tokens, size, rank)
        assert ours.tolist() == transformer_engine_indices(offsets.tolist(), num_tokens, size, rank)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_zigzag_of_one_sequence_is_pytorchs_and_megatrons(size, monkeypatch):
    num_tokens = 16 * size
    offsets = offsets_of([num_tokens])
    ours = [context_parallel_indices(offsets, num_tokens, size, restore=restore) for restore in (False, True)]
    for balancer in (
        torch_balancers._HeadTailLoadBalancer(num_tokens, size, "cpu"),
        torch_balancers._PerDocumentHeadTailLoadBalancer([[num_tokens]], size, "cpu"),
    ):
        for restore in (False, True):
            assert torch.equal(balancer._generate_indices(restore=restore)[0].long(), ours[restore])
    megatron_utils = pytest.importorskip("megatron.core.utils")
    monkeypatch.setattr(megatron_utils, "get_pg_size", lambda group: size)
    monkeypatch.setattr(megatron_utils, "get_pg_rank", lambda group: group)
    for rank in range(size):
        row = {"tokens": torch.arange(num_tokens)[None]}
        theirs = megatron_utils.get_batch_on_this_cp_rank(row, cp_group=rank)["tokens"][0]
        assert torch.equal(theirs, context_parallel_indices(offsets, num_tokens, size, rank))


def test_zigzag_of_documents_is_what_pytorch_documents():
    """The mask in the docstring of `_PerDocumentHeadTailLoadBalancer`; what it returns is in order of documents."""
    offsets = offsets_of([4, 8, 4])
    assert context_parallel_indices(offsets, 16, 2).tolist() == [
        0,
        3,
        4,
        5,
        10,
        11,
        12,
        15,
        1,
        2,
        *range(6, 10),
        13,
        14,
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@given(units=SEGMENTS, size=st.sampled_from([1, 2, 4]))
def test_ranks_share_the_row_and_the_inverse_restores_it(layout, units, size):
    offsets = offsets_of([8 * n for n in units])
    num_tokens = int(offsets[-1])
    arguments = (offsets, num_tokens, size)
    options = {"layout": layout, "block_tokens": 2}
    index = context_parallel_indices(*arguments, **options)
    assert index.dtype == torch.int64
    ranks = [context_parallel_indices(*arguments, rank, **options) for rank in range(size)]
    assert torch.equal(torch.cat(ranks), index)
    assert all(len(rank) == num_tokens // size for rank in ranks)
    row = torch.arange(num_tokens) + 100
    assert torch.equal(row[index][context_parallel_indices(*arguments, restore=True, **options)], row)


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pytorch_shards_a_row_by_a_balancer_of_ours(rank, layout):
    """`_context_parallel_shard` is what torchtitan calls; a fake process group makes this process one of four."""

    class Balancer(torch_balancers._LoadBalancer):
        def _generate_indices(self, restore=False):
            return context_parallel_indices(*row, layout=layout, block_tokens=4, restore=restore)[None]

    row = (offsets_of([8, 24, 32]), 64, 4)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (4,))
        (part,) = _context_parallel_shard(mesh, [torch.arange(64)[None]], [1], load_balancer=Balancer())
    finally:
        dist.destroy_process_group()
    assert torch.equal(part[0], context_parallel_indices(*row, rank, layout=layout, block_tokens=4))


def test_contiguous_parts_are_in_order():
    parts = [context_parallel_indices(offsets_of([5, 7]), 12, 3, rank, layout="contiguous") for rank in range(3)]
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize(("mean", "sigma"), [(200, 1.0), (800, 1.0), (800, 1.5), (2_000, 1.5), (8_000, 2.0)])
def test_blocks_balance_rows_without_alignment(mean, sigma):
    """Attention of the rank with the most, over the mean of 8 ranks, on rows of 32,768 tokens."""
    rng = np.random.default_rng(mean)
    for _ in range(20):
        offsets = lognormal_row(rng, 32_768, mean, sigma)
        blocks, contiguous = (
            work_of_ranks(offsets, context_parallel_indices(offsets, 32_768, 8, layout=layout), 8).double()
            for layout in ("blocks", "contiguous")
        )
        assert blocks.max() <= 1.01 * blocks.mean()
        assert contiguous.max() > blocks.max()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_ranks_attention_is_the_rows(layout):
    """Each rank's queries over all keys, under the mask of its own indices, put back, are the row's attention."""
    offsets, size = offsets_of([8, 24, 16]), 4
    query, key, value = torch.randn(3, 1, 48, 16, generator=torch.Generator().manual_seed(0)).unbind()
    document = torch.arange(3).repeat_interleave(offsets.diff())
    token = torch.arange(48)
    sees = (document[:, None] == document) & (token[:, None] >= token)
    attend = torch.nn.functional.scaled_dot_product_attention
    parts = []
    for rank in range(size):
        index = context_parallel_indices(offsets, 48, size, rank, layout=layout, block_tokens=4)
        parts.append(attend(query[:, index], key, value, attn_mask=sees[index]))
    restore = context_parallel_indices(offsets, 48, size, layout=layout, block_tokens=4, restore=True)
    torch.testing.assert_close(torch.cat(parts, dim=1)[:, restore], attend(query, key, value, attn_mask=sees))


def test_nothing_is_read_from_a_device():
    """A meta tensor has no values: zigzag and contiguous need none, and blocks says what to do."""
    offsets = torch.empty(3, dtype=torch.int32, device="meta")
    assert context_parallel_indices(offsets, 64, 4, 1).device.type == "meta"
    assert context_parallel_indices(offsets, 64, 4, 1, layout="contiguous").device.type == "meta"
    with pytest.raises(ValueError, match=r"on meta.*host memory"):
        context_parallel_indices(offsets, 64, 4, 1, layout="blocks", block_tokens=4)
