"""Trees of common prefixes: TRL's own rows, and what plain rows compute."""

import numpy as np
import pytest
import torch

from packhorse.rollouts import PrefixTree, tree_row


def forest(seed, most=12):
    """Samples that fork from one another at random places, some equal, some prefixes of others."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(int(random.integers(1, most))):
        stem = rows[int(random.integers(len(rows)))] if rows and random.random() < 0.8 else []
        kept = stem[: int(random.integers(0, len(stem) + 1))]
        rows.append([*kept, *random.integers(0, 3, int(random.integers(0 if kept else 1, 6))).tolist()])
    trained = [random.integers(0, 2, len(row)).tolist() for row in rows]
    logprobs = [random.normal(size=len(row)).astype(np.float32) for row in rows]
    return rows, trained, logprobs, random.normal(size=len(rows)).astype(np.float32)


def test_rows_equal_trl_s_key_by_key():
    packing = pytest.importorskip("trl.experimental.async_grpo.packing", exc_type=ImportError)
    for seed in range(300):
        rows, trained, logprobs, advantages = forest(seed)
        theirs = packing.TreeRow()
        for row, mask, values, advantage in zip(rows, trained, logprobs, advantages, strict=True):
            sample = {"input_ids": torch.tensor(row), "completion_mask": torch.tensor(mask), "group_id": 0}
            theirs.add(sample | {"old_log_probs": torch.from_numpy(values), "advantage": float(advantage)})
        ours = tree_row(rows, trained, logprobs=logprobs, advantages=advantages)
        expected = theirs.pack()
        assert list(ours) == list(expected)
        for name, values in expected.items():
            assert (ours[name].dtype, ours[name].tolist()) == (values.dtype, values.tolist()), (seed, name)


@pytest.mark.parametrize("seed", range(50))
def test_each_sequence_is_a_path_and_sees_itself_alone(seed):
    rows = forest(seed, most=30)[0]
    tree = PrefixTree.of(rows)
    mask = tree.mask()
    sees = tree.mask_mod()
    for row, at in zip(rows, np.split(tree.positions, tree.sequence_ends[:-1]), strict=True):
        assert tree.tokens[at].tolist() == row
        assert tree.depths[at].tolist() == list(range(len(row)))
        assert tree.next_tokens[at].tolist() == [*row[1:], -100]
        for depth, query in enumerate(at):
            assert torch.nonzero(mask[query])[:, 0].tolist() == at[: depth + 1].tolist()
            keys = torch.arange(tree.num_tokens)
            assert sees(0, 0, torch.tensor(query), keys).tolist() == mask[query].tolist()
    nodes = {(*row[: end + 2], end) for row in rows for end in range(len(row))}
    assert tree.num_tokens == len(nodes)


def attended(query, key, value, mask):
    return torch.softmax((query @ key.T / query.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf), -1) @ value


@pytest.mark.parametrize("seed", range(10))
def test_gathered_keys_and_gradients_equal_plain_rows(seed):
    """Attention over the dense mask, over gathered keys and over each sequence alone, in float64."""
    rows = forest(seed, most=64)[0]
    tree = PrefixTree.of(rows)
    torch.manual_seed(seed)
    table = torch.randn(3, 200, 8, dtype=torch.float64, requires_grad=True)  # query, key, value by token and depth
    weight = torch.randn(200, 3, 8, dtype=torch.float64)

    def states(tokens, depths):
        tokens, depths = torch.as_tensor(tokens), torch.as_tensor(depths)
        return (table[:, tokens] * torch.cos(depths.double() + 1)[:, None]).unbind(0)

    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        causal = torch.ones(len(row), len(row), dtype=torch.bool).tril()
        out = attended(*states(row, range(len(row))), causal)
        total = total + (out * weight[: len(row), 0]).sum()
    [expected] = torch.autograd.grad(total, table)

    parts = states(tree.tokens, tree.depths)
    dense = attended(*parts, tree.mask())
    keys, path_ends = tree.paths()
    gathered = []
    begins = zip([0, *tree.segment_ends[:-1]], tree.segment_ends, [0, *path_ends[:-1]], path_ends, strict=True)
    for first, end, first_key, end_key in begins:
        at = torch.from_numpy(keys[first_key:end_key])
        causal = torch.ones(end - first, end_key - first_key, dtype=torch.bool).tril(end_key - first_key - end + first)
        gathered.append(attended(parts[0][first:end], parts[1][at], parts[2][at], causal))
    for out in (dense, torch.cat(gathered)):
        in_rows = out[torch.from_numpy(tree.positions)]
        weights = torch.cat([weight[: len(row), 0] for row in rows])
        loss = (in_rows * weights).sum()
        assert abs(loss.item() - total.item()) < 1e-10
        [gradient] = torch.autograd.grad(loss, table, retain_graph=True)
        assert float((gradient - expected).abs().max()) < 1e-10


class Attention:
    """One way to attend in a tree, as transformers calls it."""

    def __init__(self, kind, tree):
        self.kind, self.tree = kind, tree
        self.keys, self.path_ends = tree.paths()

    def __call__(self, module, query, key, value, mask, scaling=None, **_):
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        if self.kind == "flex":
            from torch.nn.attention.flex_attention import create_block_mask, flex_attention

            size = self.tree.num_tokens
            blocks = create_block_mask(self.tree.mask_mod(), None, None, size, size, device="cpu", BLOCK_SIZE=16)
            return flex_attention(query, key, value, block_mask=blocks, scale=scaling).transpose(1, 2), None
        attend = torch.nn.functional.scaled_dot_product_attention
        if self.kind == "dense":
            return attend(query, key, value, attn_mask=self.tree.mask(), scale=scaling).transpose(1, 2), None
        parts = []
        for first, end, first_key, end_key in zip(
            [0, *self.tree.segment_ends[:-1]],
            self.tree.segment_ends,
            [0, *self.path_ends[:-1]],
            self.path_ends,
            strict=True,
        ):
            at = torch.from_numpy(self.keys[first_key:end_key])
            causal = torch.ones(end - first, len(at), dtype=torch.bool).tril(len(at) - end + first)
            part = attend(query[:, :, first:end], key[:, :, at], value[:, :, at], attn_mask=causal, scale=scaling)
            parts.append(part)
        return torch.cat(parts, 2).transpose(1, 2), None


@pytest.fixture
def in_a_tree():
    """Function: a Llama in float64, and its logits in a tree, with one kind of attention."""
    transformers = pytest.importorskip("transformers")
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionMaskInterface.register("tree_of_a_test", lambda **_: None)
    config = transformers.LlamaConfig(
        vocab_size=8, hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    for layer in model.model.layers:  # theirs computes in float32, whatever the weights are
        layer.input_layernorm, layer.post_attention_layernorm = (torch.nn.RMSNorm(32, eps=1e-6) for _ in range(2))
    model.model.norm = torch.nn.RMSNorm(32, eps=1e-6)
    model = model.double()

    def logits(tree, kind):
        AttentionInterface.register("tree_of_a_test", Attention(kind, tree))
        model.set_attn_implementation("tree_of_a_test")
        inputs = {"position_ids": torch.from_numpy(tree.depths)[None], "use_cache": False}
        found = model(torch.from_numpy(tree.tokens)[None], **inputs).logits[0]
        model.set_attn_implementation("sdpa")
        return found

    return model, logits


@pytest.mark.parametrize("kind", ["dense", "gathered", "flex"])
@pytest.mark.parametrize("most", [2, 20, 65])
@pytest.mark.parametrize("seed", range(2))
def test_a_llama_computes_what_it_computes_for_each_sequence_alone(in_a_tree, kind, most, seed):
    """Log-probabilities of trained tokens and gradients of all weights: to 1e-10. Flex has no backward on a CPU."""
    model, logits_of = in_a_tree
    rows, trained, logprobs, advantages = forest(seed + 100, most=most)
    row = tree_row(rows, trained, logprobs=logprobs, advantages=advantages)
    has_gradients = kind != "flex"
    with torch.set_grad_enabled(has_gradients):
        alone = [torch.zeros(0, dtype=torch.float64)]
        for tokens, mask in zip(rows, trained, strict=True):
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0].log_softmax(-1)
            at = torch.tensor([at for at in range(1, len(tokens)) if mask[at]], dtype=torch.int64)
            alone.append(logits[at - 1, torch.tensor(tokens)[at]])
        expected = torch.cat(alone)
        labels = row["shift_labels"][row["token_index"]]
        together = logits_of(PrefixTree.of(rows), kind).log_softmax(-1)[row["token_index"], labels]
    assert not len(expected) or (together - expected).abs().max() < 1e-10
    if not has_gradients or not len(expected):
        return
    weights = list(model.parameters())
    for one, other in zip(
        torch.autograd.grad((row["advantages"] * together).sum(), weights),
        torch.autograd.grad((row["advantages"] * expected).sum(), weights),
        strict=True,
    ):
        assert (one - other).abs().max() < 1e-10


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(3))
def test_compiled_flex_attention_has_the_gradients_of_the_dense_mask(seed):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    tree = PrefixTree.of(forest(seed, most=60)[0])
    size = tree.num_tokens
    torch.manual_seed(seed)
    states = [torch.randn(1, 2, size, 32, device="cuda", requires_grad=True) for _ in range(3)]
    blocks = create_block_mask(tree.mask_mod("cuda"), None, None, size, size, device="cuda")
    found = torch.compile(flex_attention)(*states, block_mask=blocks)
    expected = torch.nn.functional.scaled_dot_product_attention(*states, attn_mask=tree.mask().cuda())
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), states),
        torch.autograd.grad(expected.square().sum(), states),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("prompt", "answers", "positions"),
    [
        ([1, 2], [[10, 11], [20, 21, 22]], [0, 1, 2, 3, 2, 3, 4]),
        ([5], [[7, 8]], [0, 1, 2]),
        ([1, 2], [[10, 11], [20]], [0, 1, 2, 3, 2]),
    ],
)
def test_answers_to_a_prompt_as_nemo_automodel_folds_them(prompt, answers, positions):
    """The figures of its own tests (0.7).

    Its rows have the prompt once, and leave each answer's first token untrained. Ours fork one token before, so that it
    is trained: a token more for each answer but the first.
    """
    rows = [prompt + answer for answer in answers]
    tree = PrefixTree.of(rows)
    assert tree.num_tokens == len(positions) + len(answers) - 1
    again = [int(at) for at in np.flatnonzero(np.diff(tree.depths) < 0) + 1]  # the prompt's last token, again
    assert np.delete(tree.depths, again).tolist() == positions
    assert set(tree.tokens[again].tolist()) <= {prompt[-1]}
    for row, at in zip(rows, np.split(tree.positions, tree.sequence_ends[:-1]), strict=True):
        assert tree.next_tokens[at].tolist() == [*row[1:], -100]


@pytest.mark.parametrize("lengths", [[128, 42, 43, 43], [16, 1], [9, 9, 9]])
def test_prefixes_of_one_another_as_areal_tries_hold_them(lengths):
    """A trie of tokens has as many nodes as the longest; here each sequence that ends earlier has an end of its own."""
    rows = [list(range(1, length + 1)) for length in lengths]
    tree = PrefixTree.of(rows)
    assert tree.num_tokens == max(lengths) + len(set(lengths)) - 1
    for row, at in zip(rows, np.split(tree.positions, tree.sequence_ends[:-1]), strict=True):
        assert tree.tokens[at].tolist() == row


def test_flex_attention_computes_the_same():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    tree = PrefixTree.of(forest(7, most=30)[0])
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, tree.num_tokens, 16)
    size = tree.num_tokens
    blocks = create_block_mask(tree.mask_mod(), None, None, size, size, device="cpu", BLOCK_SIZE=16)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=tree.mask())
    assert (flex_attention(query, key, value, block_mask=blocks) - expected).abs().max() < 1e-5


def test_a_mask_that_trains_a_shared_token_in_one_sequence_alone_counts_it_there():
    rows = [[1, 2, 3, 4], [1, 2, 3, 5]]
    row = tree_row(rows, [[0, 1, 1, 1], [0, 0, 0, 1]], logprobs=[[0, 0.1, 0.2, 0.3], [0, 0, 0, 0.4]], advantages=[1, 2])
    assert row["segment_id"].tolist() == [0, 0, 0, 1]
    assert row["token_index"].tolist() == [0, 1, 2, 4]
    assert row["shift_labels"].tolist() == [2, 3, 4, -100, 5, -100]
    assert row["advantages"].tolist() == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sequences": []}, "sequences is empty"),
        ({"sequences": [[1, 2], []]}, r"sequences\[1\]: is empty; leave it out"),
        ({"sequences": [[1, 2], [3, -4]]}, r"sequences\[1\] holds -4"),
        ({"sequences": [[1, 2], [[3]]]}, r"sequences\[1\] must be 1-D"),
        ({"trained": [[0, 1]]}, "trained has 1 rows for 2 sequences"),
        ({"trained": [[0, 1], [0]]}, r"trained\[1\] has 1 entries for a sequence of 2 tokens"),
        ({"logprobs": [[0.0, 1.0], [0.0] * 3]}, r"logprobs\[1\] has 3 entries"),
        ({"logprobs": [[float("nan"), 0.0], [0.0, float("inf")]]}, "logprobs of sequence 1 is inf at token 1"),
        ({"advantages": [1.0, float("nan")]}, "advantages of sequence 1 is nan at token 1"),
        ({"advantages": [1.0]}, "advantages has 1 entries for 2 sequences"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change, says):
    given = {"sequences": [[1, 2], [3, 4]], "trained": [[0, 1]] * 2, "logprobs": [[0.0, 0.0]] * 2, "advantages": [1, 2]}
    given |= change
    with pytest.raises(ValueError, match=says):
        tree_row(given.pop("sequences"), given.pop("trained"), **given)
