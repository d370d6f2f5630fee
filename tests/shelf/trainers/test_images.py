"""Trainers over images: PackedTrainer hands a model its pixels and positions; PackedSFTTrainer says that it cannot."""

import numpy as np
import pytest
import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, TrainingArguments

from packhorse.client import BatchFormat, MemoryDatasets
from packhorse.trainers import PackedData
from packhorse.trainers.transformers import PackedTrainer
from packhorse.vision import media_of

IMAGE, NUM_SEQUENCES = 60, 24


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(2)
    text = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    vision = {"hidden_size": 16, "intermediate_size": 24, "depth": 1, "num_heads": 2, "patch_size": 4}
    return Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config=text | {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_parameters": rope},
            vision_config=vision | {"out_hidden_size": 32, "temporal_patch_size": 1, "window_size": 16},
            image_token_id=IMAGE,
        )
    )


@pytest.fixture(scope="module")
def data(model):
    """Function: PackedData of sequences with an image of two placeholders each."""
    tokens = [[i + 1, IMAGE, IMAGE, *range(1, 2 + i % 5)] for i in range(NUM_SEQUENCES)]
    image = {"pixel_values": torch.randn(8, 48), "image_grid_thw": torch.tensor([[1, 2, 4]])}
    datasets = MemoryDatasets({"images": [len(each) for each in tokens]}, max_seq_len=24)

    def make(*, has_media=True):
        media = media_of(model.config, lambda ids: dict.fromkeys(ids, image)) if has_media else None
        return PackedData(
            datasets, "images", [np.array(each) for each in tokens], num_workers=0, batch=BatchFormat(media=media)
        )

    return make


def test_a_trainer_trains_on_every_image(model, data, tmp_path):
    given = []

    class Recorder(PackedTrainer):
        def training_step(self, model, inputs, *args, **kwargs):
            given.append(inputs)
            return super().training_step(model, inputs, *args, **kwargs)

    args = TrainingArguments(
        str(tmp_path), num_train_epochs=1, per_device_train_batch_size=2, use_cpu=True, report_to="none"
    )
    before = model.model.visual.merger.mlp[0].weight.clone()
    Recorder(model, args, train_dataset=data()).train()
    assert sum(len(inputs["image_grid_thw"]) for inputs in given) == NUM_SEQUENCES
    assert all(inputs["position_ids"].shape == (4, *inputs["input_ids"].shape) for inputs in given)
    assert not torch.equal(model.model.visual.merger.mlp[0].weight, before)


def test_without_media_the_model_is_refused(model, data, tmp_path):
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    with pytest.raises(ValueError, match="packed sequences would see each other"):
        PackedTrainer(model, args, train_dataset=data(has_media=False)).train()


def test_trl_is_refused(data, tiny_llama, tiny_tokenizer, tmp_path):
    from trl import SFTConfig

    from packhorse.trainers.trl import PackedSFTTrainer

    args = SFTConfig(str(tmp_path), use_cpu=True, report_to="none", bf16=False)
    trainer = PackedSFTTrainer(tiny_llama(), args, train_dataset=data(), processing_class=tiny_tokenizer)
    with pytest.raises(ValueError, match=r"PackedSFTTrainer takes no media, .*use PackedTrainer"):
        trainer.train()
