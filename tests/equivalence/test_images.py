"""Packed with images: transformers' models give every sequence the logits, loss and gradients that it has alone.

Alone a model computes its own positions; packed it gets ours. Tiny models of random weights in float32.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import (
    InternVLConfig,
    InternVLForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from packhorse.client import BatchAssembler, BatchFormat, BinBlock
from packhorse.client.masks import build_packing_attention_bias
from packhorse.client.sources import IndexableSource
from packhorse.trainers import sees_other_sequences
from packhorse.vision import media_of

TOLERANCE = 1e-5
"""Relative, in float32."""
IMAGE, VOCABULARY, MAX_SEQ_LEN = 60, 64, 96
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
SEQUENCES = [[7], [5, "a", 4], [3, "b", 6, "a", 2], [9], ["c", 3], [4, "b", 1, "c", 1, "a"], [6], [5, "b", 1]]
"""Numbers of text tokens, and images by name; an image alone in its sequence is cut otherwise in LLaVA-OneVision."""
BINS = [[0, 1, 2], [3], [4, 5], [6, 7]]
"""Sequences by bin, one of them without an image."""


@dataclass(frozen=True)
class Model:
    """A family of models."""

    kind: type
    config: object
    image: object
    """Function of (name, whether it is alone, generator) that gives a processor's tensors of one image."""


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def qwen(kind, config_kind, text=None, **vision):
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    shape = {"num_heads": 2, "depth": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 1}
    config = config_kind(
        text_config=TEXT | {"rope_parameters": rope, "head_dim": 8} | (text or {}),
        vision_config=shape | {"hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 32} | vision,
        image_token_id=IMAGE,
        video_token_id=IMAGE + 1,
        vision_start_token_id=IMAGE + 2,
        vision_end_token_id=IMAGE + 3,
    )
    grids = {"a": [1, 4, 6], "b": [1, 8, 2], "c": [1, 2, 2]}

    def image(name, is_alone, generator):
        grid = torch.tensor([grids[name]])
        pixels = torch.randn(int(grid.prod()), 3 * 4**2, generator=generator)
        return {"pixel_values": pixels, "image_grid_thw": grid}

    return Model(kind, config, image)


def internvl():
    vision = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = InternVLConfig(
        text_config=TEXT | {"model_type": "qwen2"},
        vision_config=vision | {"image_size": [16, 16], "patch_size": [4, 4]},
        image_token_id=IMAGE,
        image_seq_length=4,
    )

    def image(name, is_alone, generator):
        return {"pixel_values": torch.randn({"a": 1, "b": 2, "c": 3}[name], 3, 16, 16, generator=generator)}

    return Model(InternVLForConditionalGeneration, config, image)


def llava():
    vision = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = LlavaOnevisionConfig(
        text_config=TEXT | {"model_type": "qwen2"},
        vision_config=vision | {"model_type": "siglip_vision_model", "image_size": 8, "patch_size": 4},
        image_token_index=IMAGE,
        video_token_index=IMAGE + 1,
        image_grid_pinpoints=[[8, 8], [8, 16], [16, 8], [16, 16], [40, 40]],
    )
    sizes = {"a": [8, 15], "b": [40, 33], "c": [16, 5]}

    def image(name, is_alone, generator):
        from transformers.models.llava_onevision.modeling_llava_onevision import image_size_to_num_patches

        size = sizes[name]
        num_tiles = image_size_to_num_patches(size, config.image_grid_pinpoints, 8) if is_alone else 1
        return {
            "pixel_values": torch.randn(1, num_tiles, 3, 8, 8, generator=generator),
            "image_sizes": torch.tensor([size]),
        }

    return Model(LlavaOnevisionForConditionalGeneration, config, image)


MODELS = {
    "Qwen2.5-VL": qwen(Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLConfig, window_size=16, fullatt_block_indexes=[1]),
    "Qwen3-VL": qwen(
        Qwen3VLForConditionalGeneration, Qwen3VLConfig, num_position_embeddings=16, deepstack_visual_indexes=[0]
    ),
    "Qwen2-VL": qwen(Qwen2VLForConditionalGeneration, Qwen2VLConfig, embed_dim=16, hidden_size=32),
    "Qwen3-VL-MoE": qwen(
        Qwen3VLMoeForConditionalGeneration,
        Qwen3VLMoeConfig,
        EXPERTS,
        num_position_embeddings=16,
        deepstack_visual_indexes=[0],
    ),
    "InternVL": internvl(),
    "LLaVA-OneVision": llava(),
}
FORMS = {
    "rows, SDPA": ("rows", "sdpa"),
    "rows, eager": ("rows", "eager"),
    "padding-free, SDPA": ("padding-free", "sdpa"),
    "own keys, a dense bias": (None, "sdpa"),
}


def model_of(model, attention):
    torch.manual_seed(7)
    made = model.kind._from_config(model.config, attn_implementation=attention).eval()
    with torch.no_grad():  # every weight counts: biases and norms too, and images as much as text
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3 + (parameter.ndim == 1))
    return made


def samples_of(model):
    """(tokens [n], tensors of the images) of every sequence."""
    generator = torch.Generator().manual_seed(3)
    media = media_of(model.config, lambda ids: {})
    samples = []
    for parts in SEQUENCES:
        names = [part for part in parts if isinstance(part, str)]
        images = [model.image(name, len(names) == 1, generator) for name in names]
        tensors = {key: torch.cat([image[key] for image in images]) for image in images[:1] for key in image}
        if "image_sizes" in tensors:
            tensors["batch_num_images"] = torch.tensor([len(names)])
        counts = iter(media.grids(tensors).prod(1).tolist() if names else ())
        if model.kind is InternVLForConditionalGeneration:  # a tile each
            counts = iter([sum(next(counts) for _ in image["pixel_values"]) for image in images])
        tokens = []
        for part in parts:
            if isinstance(part, str):
                tokens.append(torch.full((next(counts),), IMAGE))
            else:
                tokens.append(torch.randint(1, IMAGE, (part,), generator=generator))
        samples.append((torch.cat(tokens), tensors))
    return samples


def assemble(model, samples, preset):
    lengths = np.array([len(samples[i][0]) for one_bin in BINS for i in one_bin], np.int32)
    block = BinBlock(
        ids=np.array([i for one_bin in BINS for i in one_bin]),
        lengths=lengths,
        bin_ends=np.cumsum([len(one_bin) for one_bin in BINS]),
        positions=np.arange(len(BINS)),
    )
    media = media_of(model.config, lambda ids: {i: samples[i][1] for i in ids})
    form = BatchFormat(preset=preset, media=media)
    batch = BatchAssembler(MAX_SEQ_LEN, **form.rows()).assemble(block, IndexableSource([s[0] for s in samples]))
    return batch, batch if preset is None else form.preset.convert(batch)


def with_gradient(model, logits, tokens):
    """(logits [n, V], loss, gradients by name) of one sequence; no placeholder is predicted."""
    targets = torch.where(tokens == IMAGE, -100, tokens)
    loss = cross_entropy(logits[:-1], targets[1:], reduction="sum")
    weights = dict(model.named_parameters())
    gradients = torch.autograd.grad(
        loss, list(weights.values()), retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return logits.detach(), loss.detach(), dict(zip(weights, gradients, strict=True))


def alone(made, samples):
    for tokens, tensors in samples:
        inputs = {"input_ids": tokens[None], **tensors}
        if "image_grid_thw" in tensors:
            inputs["mm_token_type_ids"] = (tokens == IMAGE).int()[None]
        logits = made(**inputs, use_cache=False).logits[0]
        yield with_gradient(made, logits, tokens)


def distance(found, expected):
    """How far a tensor is from the expected one, relative to its largest value."""
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1e-3)).item()


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return MODELS[request.param]


def packed(made, batch, inputs, samples):
    """The same as `alone`, by the sequence's number, from one forward pass of all."""
    logits = made(**inputs, use_cache=False).logits.flatten(0, 1)
    where = zip(batch["ids"].tolist(), batch["layout"].starts.tolist(), batch["layout"].lengths.tolist(), strict=True)
    return {i: with_gradient(made, logits[start : start + length], samples[i][0]) for i, start, length in where}


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=pytest.mark.long) if "eager" in form else form for form in FORMS]
)
def test_packed_equals_alone(model, form):
    preset, attention = FORMS[form]
    samples = samples_of(model)
    batch, inputs = assemble(model, samples, preset)
    if preset is None:
        inputs = {key: batch[key] for key in ("input_ids", "position_ids", *batch["media"].keys)}
        inputs["attention_mask"] = build_packing_attention_bias(batch, torch.float32, "cpu", causal=True)
    inputs.pop("labels", None)
    made = model_of(model, attention)
    found = packed(made, batch, inputs, samples)
    for i, (logits, loss, gradients) in enumerate(alone(made, samples)):
        assert distance(found[i][0], logits) < TOLERANCE
        assert distance(found[i][1], loss) < TOLERANCE
        for is_vision in (False, True):  # the vision tower and what lies between it and the model, and the model
            names = [
                name for name in gradients if ("language_model" not in name and "lm_head" not in name) is is_vision
            ]
            mine, own = (torch.cat([each[name].flatten() for name in names]) for each in (found[i][2], gradients))
            assert bool(own.norm() > 1) is (not is_vision or bool(samples[i][1]))
            assert (mine - own).norm() <= TOLERANCE * own.norm()


def test_positions_are_the_models_own(model):
    samples = samples_of(model)
    batch, _ = assemble(model, samples, None)
    made = model_of(model, "sdpa")
    if not hasattr(made.model, "get_rope_index"):
        assert batch["position_ids"].ndim == 2
        return
    positions = batch["position_ids"].flatten(1)
    starts, lengths = batch["layout"].starts.tolist(), batch["layout"].lengths.tolist()
    for i, start, length in zip(batch["ids"].tolist(), starts, lengths, strict=True):
        tokens, tensors = samples[i]
        grids = tensors.get("image_grid_thw")
        own, _ = made.model.get_rope_index(tokens[None], (tokens == IMAGE).int()[None], image_grid_thw=grids)
        assert torch.equal(positions[1:, start : start + length], own[:, 0])
        assert torch.equal(positions[0, start : start + length], torch.arange(length))


@pytest.mark.parametrize("change", ["no positions of images", "no positions of text", "images in another order"])
def test_what_is_wrong_does_not_pass(model, change):
    """Each sequence that the change concerns has other logits: the comparison above would notice.

    An image of one placeholder has the position that text has there.
    """
    samples = samples_of(model)
    batch, inputs = assemble(model, samples, "rows")
    positions = inputs["position_ids"]
    concerned = {"no positions of images": [1, 2, 5, 7], "no positions of text": [2, 5, 7]}.get(change, [1, 2, 4, 5, 7])
    if change == "images in another order":
        inputs["pixel_values"] = inputs["pixel_values"].flip(0)
    elif positions.ndim == 2:
        pytest.skip("this model counts images as text")
    else:
        inputs["position_ids"] = positions[:1].expand(4, -1, -1) if "images" in change else positions[1:]
    inputs.pop("labels")
    made = model_of(model, "sdpa")
    found = packed(made, batch, inputs, samples)
    expected = list(alone(made, samples))
    assert all(distance(found[i][0], expected[i][0]) > 100 * TOLERANCE for i in concerned)


def test_a_model_with_positions_of_its_own_is_asked_with_media():
    for name, family in MODELS.items():
        made = model_of(family, "sdpa")
        media = media_of(family.config, lambda ids: {})
        assert sees_other_sequences(made) is (name in ("Qwen2-VL", "Qwen2.5-VL"))
        assert not sees_other_sequences(made, media=media)
