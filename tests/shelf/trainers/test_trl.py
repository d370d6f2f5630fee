"""PackedSFTTrainer against the real SFTTrainer: the same losses as without packing."""

import gc
import weakref

import pytest
import torch
from datasets import Dataset
from tests.flat_words import packed_data
from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer

from packhorse.trainers.trl import PackedSFTTrainer

pytestmark = pytest.mark.long


@pytest.fixture
def config(tmp_path):
    """Function: an SFTConfig for the CPU."""

    def make(**options):
        defaults = {
            "output_dir": str(tmp_path / "out"),
            "num_train_epochs": 3,
            "logging_steps": 1,
            "learning_rate": 1e-2,
            "use_cpu": True,
            "bf16": False,
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
        }
        return SFTConfig(**(defaults | options))

    return make


@pytest.fixture
def packed(small_corpus):
    target, tokens, _ = small_corpus
    return lambda name="small", **options: packed_data(target, name, tokens, **({"num_workers": 0} | options))


def losses_of(trainer, name="loss"):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.parametrize("preset", ["rows", "padding-free"])
def test_losses_are_those_of_the_trainer_without_packing(
    config, packed, small_corpus, tiny_llama, tiny_tokenizer, preset
):
    """All sequences make one step, so both trainers go the same way, step by step."""
    sequences = small_corpus[2]
    alone = SFTTrainer(
        tiny_llama(),
        config(per_device_train_batch_size=60, max_length=None),
        train_dataset=Dataset.from_dict({"input_ids": sequences}),
        processing_class=tiny_tokenizer,
    )
    alone.train()
    together = PackedSFTTrainer(
        tiny_llama(),
        config(per_device_train_batch_size=8, gradient_accumulation_steps=5),
        train_dataset=packed(preset=preset),
        processing_class=tiny_tokenizer,
    )
    together.train()
    assert len(losses_of(alone)) == len(losses_of(together)) == 3
    assert losses_of(together) == pytest.approx(losses_of(alone), rel=1e-5)
    assert losses_of(together, "grad_norm") == pytest.approx(losses_of(alone, "grad_norm"), rel=1e-4)
    for ours, theirs in zip(together.model.parameters(), alone.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_resumes_with_the_weights_and_losses_of_a_run_that_never_stopped(config, packed, tiny_llama, tiny_tokenizer):
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "num_train_epochs": 2}

    def train(callbacks=(), resume=None, **more):
        trainer = PackedSFTTrainer(
            tiny_llama(),
            config(save_strategy="steps", save_steps=4, **options, **more),
            train_dataset=packed(),
            processing_class=tiny_tokenizer,
            callbacks=list(callbacks),
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 9

    whole = train(output_dir=config().output_dir + "-whole")
    train([Stop()])
    again = train(resume=True)
    assert again.state.global_step == whole.state.global_step == again.state.max_steps > 9
    assert losses_of(again) == losses_of(whole)
    assert losses_of(again, "learning_rate") == losses_of(whole, "learning_rate")
    for ours, theirs in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("batch_size", [3, 8])
def test_the_loss_on_a_validation_set_is_the_mean_over_its_targets(
    config, packed, small_corpus, tiny_llama, tiny_tokenizer, batch_size
):
    """Of other sets the trainer's own way; packed ones of any name, and given directly."""
    sequences = small_corpus[2][:20]
    model = tiny_llama()
    rows = [torch.tensor([sequence]) for sequence in sequences if len(sequence) > 1]
    num_targets = [len(row[0]) - 1 for row in rows]
    total = sum(model(row, labels=row).loss.item() * n for row, n in zip(rows, num_targets, strict=True))
    expected = total / sum(num_targets)
    ordinary = Dataset.from_dict({"input_ids": sequences})
    trainer = PackedSFTTrainer(
        model,
        config(per_device_eval_batch_size=batch_size, max_length=None, eval_strategy="epoch", num_train_epochs=1),
        train_dataset=packed(),
        eval_dataset={"packed": packed("held-out"), "ordinary": ordinary},
        processing_class=tiny_tokenizer,
    )
    for _ in range(2):
        assert trainer.evaluate()["eval_packed_loss"] == pytest.approx(expected, rel=1e-5)
    assert trainer.evaluate(packed("held-out"))["eval_loss"] == pytest.approx(expected, rel=1e-5)
    given = trainer.evaluate({"packed": packed("held-out"), "ordinary": ordinary})
    assert given["eval_packed_loss"] == pytest.approx(expected, rel=1e-5)
    assert given["eval_ordinary_loss"] == pytest.approx(expected, rel=0.2)
    assert trainer.evaluate()["eval_ordinary_loss"] == pytest.approx(expected, rel=0.2)  # a mean of batches' means
    trainer.train()
    assert len(losses_of(trainer, "eval_packed_loss")) == 1


def test_no_other_validation_set_gets_the_id_of_one_whose_loader_is_kept(config, packed, tiny_llama, tiny_tokenizer):
    trainer = PackedSFTTrainer(tiny_llama(), config(), train_dataset=packed(), processing_class=tiny_tokenizer)
    data = packed("held-out")
    num_batches, held_out = len(trainer.get_eval_dataloader(data)), weakref.ref(data)
    del data
    gc.collect()
    assert held_out() is not None
    assert num_batches < len(trainer.get_eval_dataloader(packed("small")))


def test_what_packed_data_decides_is_refused(config, packed, tiny_llama, tiny_tokenizer):
    def make(data, args=None, **options):
        PackedSFTTrainer(tiny_llama(), args or config(), train_dataset=data, processing_class=tiny_tokenizer, **options)

    with pytest.raises(ValueError, match=r"assistant_only_loss has no say .*loss_mask=…"):
        make(packed(), config(assistant_only_loss=True))
    with pytest.raises(TypeError, match="train_dataset must be PackedData, got Dataset"):
        make(Dataset.from_dict({"input_ids": [[1, 2]]}))
    with pytest.raises(ValueError, match="data_collator has no part in packed batches"):
        make(packed(), data_collator=lambda rows: rows)


def test_tokens_are_counted_over_all_rows(config, packed, tiny_llama, tiny_tokenizer):
    trainer = PackedSFTTrainer(
        tiny_llama(),
        config(per_device_train_batch_size=4, max_steps=3),
        train_dataset=packed(),
        processing_class=tiny_tokenizer,
    )
    trainer.train()
    assert losses_of(trainer, "num_tokens") == [4 * 32, 2 * 4 * 32, 3 * 4 * 32]
