"""`PackedBins` in Hugging Face's real Trainer: every sequence once an epoch, and again after a resume."""

from collections import Counter
from itertools import pairwise

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from packhorse.client import PackedBins

VOCABULARY = 500


class Recording(Trainer):
    """Writes down the sequences that it is trained on."""

    def training_step(self, model, inputs, *args, **kwargs):
        offsets, tokens = inputs["cu_seq_lens_q"].tolist(), inputs["input_ids"][0].tolist()
        for begin, end in pairwise(offsets):
            self.seen.append(tuple(tokens[begin:end]))
        return super().training_step(model, inputs, *args, **kwargs)


def small(corpus):
    """Tokens of a small vocabulary."""
    return [tokens % VOCABULARY for tokens in corpus.sequences[:400]]


@pytest.fixture
def make_trainer(corpus, tmp_path, no_launcher):
    def make(**options):
        bins = PackedBins(f"embedded:{corpus.root}", "truncated", small(corpus), seed=3, preset="padding-free")
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=8,
                intermediate_size=8,
                num_hidden_layers=1,
                num_attention_heads=1,
                use_cache=False,
            )
        )
        settings = TrainingArguments(
            str(tmp_path / "run"),
            per_device_train_batch_size=16,
            num_train_epochs=2,
            save_steps=7,
            seed=1,
            use_cpu=True,
            remove_unused_columns=False,
            report_to="none",
            disable_tqdm=True,
            **options,
        )
        trainer = Recording(model=model, args=settings, train_dataset=bins, data_collator=bins.collate)
        trainer.seen = []
        return trainer

    return make


def whole(corpus):
    return Counter(tuple(tokens.tolist()[:96]) for tokens in small(corpus))


def test_a_trainer_goes_through_whole_epochs_and_resumes_within_one(make_trainer, corpus, tmp_path):
    trainer = make_trainer()
    trainer.train()
    twice = whole(corpus) + whole(corpus)
    assert Counter(trainer.seen) == twice
    resumed = make_trainer()
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-7"))
    assert resumed.seen == trainer.seen[len(trainer.seen) - len(resumed.seen) :]
    assert 0 < len(resumed.seen) < len(trainer.seen)


def test_rows_of_the_trainers_own_collation_keep_sequences_apart(make_trainer, corpus):
    """In the default form a model finds the sequences by their positions: nothing of a neighbour is seen."""
    bins = PackedBins(f"embedded:{corpus.root}", "truncated", small(corpus), seed=3)
    model = make_trainer().model.eval()
    batch = torch.utils.data.default_collate([bins[0], bins[1]])
    with torch.no_grad():
        packed = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits
        for row in range(2):
            numbers, positions = batch["sequence_ids"][row], batch["position_ids"][row]
            for begin in (positions == 0).nonzero().ravel().tolist():
                own = (numbers == numbers[begin]).nonzero().ravel()
                alone = model(input_ids=batch["input_ids"][row][own][None]).logits[0]
                torch.testing.assert_close(packed[row][own], alone, rtol=1e-4, atol=1e-5)
