"""TRL's SFTTrainer: what it packs itself, and a step on our batches."""

from itertools import pairwise

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

from packhorse.client.presets import get_preset

MAX_SEQ_LEN = 16
LENGTHS = (9, 7, 16, 5, 4, 3, 2)


class PackedTrainer(SFTTrainer):
    """Trains on batches that are ready."""

    packed_loader = None

    def get_train_dataloader(self):
        return self.packed_loader


@pytest.fixture
def sequences():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, 64, (n,), generator=generator).tolist() for n in LENGTHS]


@pytest.fixture
def make_trainer(tmp_path, sequences):
    """Function: a trainer of a small Llama, offline and on the CPU, that packs `sequences` by best fit."""
    words = {word: i for i, word in enumerate(["<pad>", "<eos>", *(f"w{i}" for i in range(62))])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<pad>")), eos_token="<eos>", pad_token="<pad>"
    )

    def make(trainer=SFTTrainer):
        torch.manual_seed(5)
        config = LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
        )
        return trainer(
            model=LlamaForCausalLM(config),
            processing_class=tokenizer,
            train_dataset=Dataset.from_dict({"input_ids": sequences}),
            args=SFTConfig(
                output_dir=str(tmp_path),
                max_length=MAX_SEQ_LEN,
                packing=True,
                per_device_train_batch_size=2,
                max_steps=1,
                logging_steps=1,
                use_cpu=True,
                bf16=False,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
            ),
        )

    return make


def test_batches_are_those_that_trl_packs(make_trainer, sequences, assemble):
    """Its bins and their order are TRL's; of the same bins its batch and ours are one."""
    preset = get_preset("trl")
    seen = []
    for theirs in make_trainer().get_train_dataloader():
        offsets = theirs["cu_seq_lens_q"].tolist()
        tokens = theirs["input_ids"][0].tolist()
        found = [tokens[a:b] for a, b in pairwise(offsets)]
        seen += found
        ours = preset.convert(assemble([[sequence] for sequence in found], MAX_SEQ_LEN, preset))
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            if torch.is_tensor(value):
                assert ours[key].dtype == value.dtype
                assert torch.equal(ours[key], value), key
            else:
                assert ours[key] == value
    assert sorted(seen) == sorted(sequences)


def test_a_step_has_the_loss_and_the_gradients_of_the_sequences_alone(make_trainer, sequences, assemble):
    preset = get_preset("trl")
    bins = [sequences[:2], sequences[2:3], sequences[3:]]
    trainer = make_trainer(PackedTrainer)
    model = trainer.model
    total = torch.zeros(())
    for sequence in sequences:
        tokens = torch.tensor([sequence])
        losses = model(tokens, labels=tokens, use_cache=False).loss * (len(sequence) - 1)
        total = total + losses
    expected = total / sum(n - 1 for n in LENGTHS)
    expected.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()

    batch = preset.convert(assemble(bins, MAX_SEQ_LEN, preset))
    trainer.packed_loader = DataLoader([batch], batch_size=None)
    seen = {}

    class Watch(TrainerCallback):
        def on_pre_optimizer_step(self, *_, **__):
            seen.update({name: parameter.grad.clone() for name, parameter in model.named_parameters()})

    trainer.add_callback(Watch())
    trainer.args.max_grad_norm = 0.0
    trainer.train()
    logged = next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
    assert logged == pytest.approx(expected.item(), abs=2e-4)
    for name, gradient in gradients.items():
        torch.testing.assert_close(seen[name], gradient, rtol=1e-4, atol=1e-6)
