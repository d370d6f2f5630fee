"""`sees_other_sequences`: tests, before training, whether a model keeps packed sequences apart.

Some models of transformers make their mask without `position_ids` (gpt-oss, OPT, BLOOM, Falcon, MPT), and some layers
pass state from token to token (Mamba). Such a model trains on packed rows without an error, but every sequence sees the
sequences before it in its row. A tree of shared prefixes needs more: attention must obey a mask with a value for each
pair of tokens. Owns the test for rows and for trees, and the refusal of a model for trees (`check_takes_trees`). Leaves
other refusals to each trainer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from packhorse.client import BatchAssembler, BinBlock, PackedBatch, get_preset
from packhorse.client.batches import Media
from packhorse.client.presets import Preset
from packhorse.tokens import IndexableSource

_LENGTH = 8
"""Length in tokens of each of the two sequences, and of the prefix that they share in a tree."""

TREE = "tree"
"""What `sees_other_sequences` takes in place of a preset's name, to test a tree instead of rows."""


def sees_other_sequences(model: Any, preset: str | Preset = "rows", media: Media | None = None) -> bool:
    """Returns whether a model's packed sequences see each other, by one small forward and backward pass.

    Two sequences of eight tokens are packed into a row. If the gradient of the second one's logits with respect to the
    first one's embeddings is not 0, the first one was seen. It is exactly 0, in every dtype, for tokens that attention
    leaves out. The model's weights, gradients and modes do not change.

    With "tree", the two sequences are branches after a common prefix of eight tokens, and the model gets a mask. The
    result is then True if the second branch sees the first one, or does not see the prefix.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM
        >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 32}
        >>> sees_other_sequences(LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=8)))
        False
        >>> sees_other_sequences(OPTForCausalLM(OPTConfig(**sizes, ffn_dim=8, word_embed_proj_dim=8)))
        True

    Args:
        model: a model with `get_input_embeddings` and an output with `logits` [B, L, V], like those of transformers.
            Its weights must be complete, on one device.
        preset: the preset with which it will train: `rows`, or `padding-free` with FlashAttention; or "tree", for
            `pack_rollouts` with `prefixes="tree"` and SDPA or eager attention.
        media: the images of batches, for a model whose position ids depend on them. No image is loaded.

    Raises:
        ValueError: the model has no input embeddings, or its output no logits; or the model refuses packed sequences,
            as models of transformers with linear attention do without their kernels.
    """
    if not hasattr(model, "get_input_embeddings"):
        raise ValueError(
            f"{type(model).__name__} has no get_input_embeddings: give a model as transformers makes them, before "
            "DDP or another wrapper takes it"
        )
    embeddings = model.get_input_embeddings()
    if preset != TREE:
        first, *_ = _gradients(model, embeddings, _rows(preset, media))
        return bool(first.any())
    prefix, first, _ = _gradients(model, embeddings, _tree(embeddings.weight.dtype))
    return bool(first.any()) or not bool(prefix.any())


def check_takes_trees(model: Any) -> None:
    """Refuses a model that cannot train on trees of shared prefixes.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 32}
        >>> check_takes_trees(LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=8)))

    Args:
        model: as in `sees_other_sequences`.

    Raises:
        ValueError: its layers pass state from one branch to the next (linear attention, Mamba), or its attention takes
            no mask (FlashAttention). The message says what to do.
    """
    try:
        mixes_branches = sees_other_sequences(model, TREE)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # some attention kernels refuse the mask
        mixes_branches = True
    if mixes_branches:
        raise ValueError(
            f"{type(model).__name__} mixes the branches of a tree: a layer goes on from token to token, or its "
            "attention takes no mask. Pack with prefixes='repeated', or load it with attn_implementation='sdpa'; for "
            "linear attention there are kernels that read tree_kv_index and its offsets (axolotl's tree-recurrence)"
        )


def _gradients(model: Any, embeddings: nn.Module, batch: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """Returns the gradient of the last sequence's logits with respect to each `_LENGTH` embeddings of the row."""
    device = next(embeddings.parameters()).device
    inputs = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
    embedded: list[torch.Tensor] = []

    def watch(module: nn.Module, arguments: Any, output: torch.Tensor) -> torch.Tensor:
        """Makes the embeddings a leaf whose gradient can be taken."""
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    hook = embeddings.register_forward_hook(watch)
    try:
        with _evaluating(model), torch.enable_grad():
            logits = getattr(model(**inputs, use_cache=False), "logits", None)
            if logits is None:
                raise ValueError(f"the output of {type(model).__name__} has no logits")
            [gradient] = torch.autograd.grad(logits[:, -_LENGTH:].float().square().sum(), embedded[:1])
    finally:
        hook.remove()
    return torch.split(gradient, _LENGTH, dim=1)


def _tree(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Returns a row of two sequences that share their first half: [prefix, first branch, second branch].

    The mask is added to attention scores.
    """
    at = torch.arange(3 * _LENGTH)
    branch = at // _LENGTH  # 0 is the common prefix
    sees = (at[None] <= at[:, None]) & ((branch[None] == 0) | (branch[None] == branch[:, None]))
    mask = torch.zeros(sees.shape, dtype=dtype).masked_fill(~sees, torch.finfo(dtype).min)
    positions = torch.cat([at[: 2 * _LENGTH], at[_LENGTH : 2 * _LENGTH]])
    tokens = 1 + torch.cat([at[:_LENGTH], at[:_LENGTH], at[:_LENGTH]])
    return {"input_ids": tokens[None], "position_ids": positions[None], "attention_mask": mask[None, None]}


def _rows(preset: str | Preset, media: Media | None) -> dict[str, Any]:
    """Returns a row of two sequences, with a preset's keys."""
    preset = get_preset(preset) if isinstance(preset, str) else preset
    return {name: value for name, value in preset.convert(_two_sequences(preset, media)).items() if name != "labels"}


def _two_sequences(preset: Preset, media: Media | None) -> PackedBatch:
    """Returns a batch of one full row: two sequences of text, of the same length and with the same tokens."""
    block = BinBlock(
        ids=np.arange(2), lengths=np.full(2, _LENGTH, np.int32), bin_ends=np.array([2]), positions=np.zeros(1, np.int64)
    )
    # A token for padding and at least as many others as a sequence is long, none of them the placeholder of images.
    pad, *tokens = [token for token in range(_LENGTH + 2) if media is None or token != media.image_token_id]
    assembler = BatchAssembler(
        2 * _LENGTH, flatten=preset.flatten, shift_labels=preset.shift_labels, pad_token_id=pad, media=media
    )
    tokens = tokens[:_LENGTH]
    return assembler.assemble(block, IndexableSource([tokens, tokens]))


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Puts a model into evaluation mode, without dropout; afterwards restores the mode of each of its modules."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
