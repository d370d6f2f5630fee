"""PackedTrainer: Hugging Face's Trainer counts epochs, steps and rates right under whatever it is resumed with."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.flat_words import packed_data
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from packhorse.client import get_preset
from packhorse.trainers import PackedData
from packhorse.trainers.transformers import PackedTrainer, PackedTrainerMixin, cursor_of_checkpoint

EVERY_ID = Counter(range(2000))


class Tiny(torch.nn.Module):
    """Takes what a packed batch holds and learns next to nothing."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(60_000, 1)

    def forward(self, input_ids, labels, position_ids, seq_idx):
        return {"loss": self.embedding(input_ids).square().mean()}


def with_ids(batch):
    return get_preset("rows").build(batch) | {"ids": batch["ids"]}


class Recorder(PackedTrainer):
    """Notes which ids it was trained on, by epoch."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen, self.rows, self.epochs_done = {}, [], []

    def training_step(self, model, inputs, *args, **kwargs):
        self.seen.setdefault(self._batches.epoch, Counter()).update(inputs.pop("ids").tolist())
        self.rows.append(len(inputs["input_ids"]))
        return super().training_step(model, inputs, *args, **kwargs)


class Stop(TrainerCallback):
    """Saves and leaves after so many steps."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = control.should_training_stop = state.global_step == self.step


@pytest.fixture
def train(corpus, tmp_path):
    """Function: trains one rank, and returns its Recorder."""

    def run(
        *,
        rank=0,
        world_size=1,
        batch_size=32,
        accumulation=1,
        num_workers=0,
        stop=None,
        resume=None,
        output="out",
        data_options=(),
        trainer=Recorder,
        **options,
    ):
        data = packed_data(
            f"embedded:{corpus.root}",
            "rows",
            corpus.megatron,
            rank=rank,
            world_size=world_size,
            num_workers=num_workers,
            preset=replace(get_preset("rows"), build=with_ids),
            **dict(data_options),
        )
        args = TrainingArguments(
            str(tmp_path / output),
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation,
            **({"num_train_epochs": 2, "save_strategy": "no", "logging_steps": 1} | options),
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        )
        trainer = trainer(Tiny(), args, train_dataset=data, callbacks=[Stop(stop)] if stop else None)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return run


def of_epochs(*trainers):
    seen = {}
    for trainer in trainers:
        for epoch, ids in trainer.seen.items():
            seen.setdefault(epoch, Counter()).update(ids)
    return seen


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry and "loss" in entry]


@pytest.mark.long
def test_every_sequence_comes_once_an_epoch_across_three_topologies(train, tmp_path):
    """2 ranks, then 1, then 3: other batches, accumulation and workers each time."""
    legs = [
        {"world_size": 2, "batch_size": 8, "accumulation": 3, "stop": 4},
        {"world_size": 1, "batch_size": 10, "accumulation": 4, "num_workers": 2, "stop": 15},
        {"world_size": 3, "batch_size": 4, "accumulation": 1, "stop": None},
    ]
    done, checkpoint = [], None
    for number, leg in enumerate(legs):
        ranks = [
            train(rank=rank, output=f"{number}-{rank}", resume=checkpoint, **leg) for rank in range(leg["world_size"])
        ]
        assert len({trainer.state.global_step for trainer in ranks}) == 1
        done += ranks
        checkpoint = get_last_checkpoint(str(tmp_path / f"{number}-0"))
    assert of_epochs(*done) == {0: EVERY_ID, 1: EVERY_ID}
    last = done[-1]
    assert last.state.epoch == pytest.approx(2)
    assert last.state.global_step == last.state.max_steps
    rates = logged(last, "learning_rate")
    assert all(a > b for a, b in pairwise(rates))
    assert rates[-1] == pytest.approx(rates[-2] / 2, rel=1e-3)  # linear, and 0 at the end of the run


@pytest.mark.parametrize("resumed_batch_size", [32, 13, pytest.param(500, marks=pytest.mark.long)])
@pytest.mark.parametrize("save_strategy", ["steps", "epoch"])
def test_resumes_within_an_epoch_and_at_its_end(train, save_strategy, resumed_batch_size):
    first = (
        train(stop=7, save_strategy="steps")
        if save_strategy == "steps"
        else train(num_train_epochs=1, save_strategy="epoch")
    )
    second = train(resume=True, batch_size=resumed_batch_size)
    assert of_epochs(first, second) == {0: EVERY_ID, 1: EVERY_ID}
    assert second.state.epoch == pytest.approx(2)


def test_max_steps_are_steps_under_any_batch_size(train):
    first = train(stop=10, max_steps=30, batch_size=32)
    second = train(resume=True, max_steps=30, batch_size=8)
    assert (first.state.global_step, second.state.global_step) == (10, 30)
    assert len(second.rows) == 20
    rates = logged(second, "learning_rate")
    assert rates[10] - rates[-1] == pytest.approx((rates[0] - rates[-1]) * 19 / 29)
    assert not of_epochs(first)[0] & Counter(list(second.seen[0]))


def test_epochs_that_leave_out_different_positions_end_where_they_end(train):
    options = {"skip": {1: "0:60"}}
    trainer = train(data_options=options, num_train_epochs=3, batch_size=16, accumulation=2)
    seen = of_epochs(trainer)
    assert seen[0] == seen[2] == EVERY_ID
    assert 0 < len(seen[1]) < 2000


def test_a_checkpoint_says_where_it_stands_and_others_are_refused(train, tmp_path):
    train(stop=5)
    checkpoint = get_last_checkpoint(str(tmp_path / "out"))
    cursor = cursor_of_checkpoint(checkpoint)
    assert (cursor["epoch"], cursor["position"]) == (0, 5 * 32)

    class WithoutCursor(Recorder):
        def add_callback(self, callback):
            if type(callback).__name__ != "PackhorseCursor":
                super().add_callback(callback)

    train(stop=5, output="plain", trainer=WithoutCursor)
    with pytest.raises(ValueError, match=r"checkpoint-5 holds no cursor.*as the model"):
        train(resume=str(tmp_path / "plain" / "checkpoint-5"))
    with pytest.raises(ValueError, match=r"no checkpoint in .*empty"):
        train(resume=True, output="empty")
    with pytest.raises(ValueError, match="no checkpoint of a Trainer"):
        train(resume=str(tmp_path))


def test_callbacks_that_the_trainer_restores_keep_the_cursor(train, tmp_path):
    first = train(stop=4)
    second = train(resume=True, restore_callback_states_from_checkpoint=True, stop=6)
    assert cursor_of_checkpoint(tmp_path / "out" / "checkpoint-6")["position"] == 6 * 32
    third = train(resume=True)
    assert of_epochs(first, second, third) == {0: EVERY_ID, 1: EVERY_ID}


def test_the_mixin_goes_before_any_trainer(train):
    class Mine(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            inputs.pop("ids")
            return super().compute_loss(model, inputs, *args, **kwargs) * 0

    class MinePacked(PackedTrainerMixin, Mine):
        pass

    trainer = train(trainer=MinePacked, num_train_epochs=1)
    assert logged(trainer, "loss") == [0.0] * trainer.state.max_steps


def test_mode_independent_is_refused(train):
    with pytest.raises(ValueError, match="mode 'independent' gives an epoch no length"):
        train(data_options={"mode": "independent"})


def test_the_form_follows_the_model_s_attention(small_corpus, tiny_llama, tmp_path):
    target, tokens, _ = small_corpus
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", per_device_train_batch_size=2)
    model = tiny_llama()
    trainer = PackedTrainer(model, args, train_dataset=PackedData(target, "small", tokens, num_workers=0))
    shapes = {tuple(batch["input_ids"].shape) for batch in trainer.get_train_dataloader()}
    assert shapes == {(2, 32)}
    model.config._attn_implementation_internal = "flash_attention_2"
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["input_ids"].shape[0] == 1
    assert batch["cu_seq_lens_q"][-1] == batch["input_ids"].shape[1]
