"""PackedDataModule: whatever the Trainer counts, a resume trains on what the checkpoint's cursor has left."""

import logging
from collections import Counter

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from tests.flat_words import packed_data

from packhorse.client import MemoryDatasets
from packhorse.trainers import PackedData, PackedDataModule

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice about workers, loggers and checkpoint folders

NUM_SEQUENCES = 300
MEMORY = MemoryDatasets({"data": [1 + i * i % 13 for i in range(NUM_SEQUENCES)]}, max_seq_len=16)
TOKENS = [[i % 50] * (1 + i * i % 13) for i in range(NUM_SEQUENCES)]


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(LightningModule):
    """Notes the ids that it was trained on, by epoch, in its checkpoints too: of a whole chain of resumes."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.trained = []

    def training_step(self, batch, batch_index):
        self.trained.append((batch["cursor"]["epoch"], batch["ids"].tolist()))
        return self.weight.square()

    def validation_step(self, batch, batch_index):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["trained"] = list(self.trained)

    def on_load_checkpoint(self, checkpoint):
        self.trained = list(checkpoint["trained"])

    def by_epoch(self):
        seen = {}
        for epoch, ids in self.trained:
            seen.setdefault(epoch, Counter()).update(ids)
        return seen


def whole(num_epochs):
    return {epoch: Counter(range(NUM_SEQUENCES)) for epoch in range(num_epochs)}


class SavingAfterValidation(Callback):
    def __init__(self, path):
        self.path = path

    def on_validation_end(self, trainer, model):
        if not trainer.sanity_checking:
            trainer.save_checkpoint(self.path)


def module(batch_size=4, **options):
    validation = options.pop("validation", None)
    data = packed_data(MEMORY, "data", TOKENS, batch_size=batch_size, num_workers=0, seed=3, **options)
    return PackedDataModule(data, validation=validation)


def train(data, *, resume=None, model=None, callbacks=(), **options):
    """Trains in a new Trainer, and returns it and the model."""
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
        **options,
    )
    model = model or Model()
    trainer.fit(model, data, ckpt_path=resume)
    return trainer, model


NUM_BATCHES = len(PackedData(MEMORY, "data", TOKENS, num_workers=0).open(batch_size=4))
"""Of an epoch."""


def leg_by_hand(folder, resume, number, **options):
    """Trains, and saves by hand when `fit` is done."""
    trainer, _ = train(module(), resume=resume, **options)
    path = folder / f"{number}.ckpt"
    trainer.save_checkpoint(path)
    return path


def leg_by_callback(folder, resume, number, **options):
    """Trains, and takes the last checkpoint that Lightning wrote."""
    saving = ModelCheckpoint(folder / str(number), save_top_k=-1, filename="{step}", every_n_train_steps=3)
    train(module(), resume=resume, callbacks=[saving], **options)
    return max((folder / str(number)).glob("*.ckpt"), key=lambda path: int(path.stem.partition("=")[2]))


def leg_by_epoch(folder, resume, number, **options):
    """Trains, and takes what Lightning wrote at an epoch's end."""
    saving = ModelCheckpoint(folder / str(number), save_top_k=-1, filename="{step}", save_on_train_epoch_end=True)
    train(module(), resume=resume, callbacks=[saving], **options)
    return max((folder / str(number)).glob("*.ckpt"), key=lambda path: int(path.stem.partition("=")[2]))


def leg_with_validation(folder, resume, number, **options):
    """Trains and validates every five batches, and takes what was saved after the last time."""
    data = module(validation=PackedData(MEMORY, "data", TOKENS, batch_size=8))
    path = folder / f"{number}.ckpt"
    train(data, resume=resume, callbacks=[SavingAfterValidation(path)], val_check_interval=5, **options)
    return path


LEGS = [leg_by_hand, leg_by_callback, leg_by_epoch, leg_with_validation]
ENDS = {
    "within the first epoch": [{"max_steps": 7}],
    "at its end": [{"max_steps": NUM_BATCHES}],
    "by its number": [{"max_epochs": 1}],
    "by its number, of two": [{"max_epochs": 2}],
    "within the second": [{"max_steps": NUM_BATCHES + 5}],
    "twice within the first": [{"max_steps": 7}, {"max_steps": 12}],
    "within the first and the second": [{"max_steps": 7}, {"max_steps": NUM_BATCHES + 7}],
    "within the first, and at its end": [{"max_steps": 7}, {"max_epochs": 1}],
    "at the end, and within the second": [{"max_epochs": 1}, {"max_steps": NUM_BATCHES + 9, "max_epochs": 5}],
    "at the end twice": [{"max_epochs": 1}, {"max_epochs": 2}],
    "at the end, by steps": [{"max_steps": NUM_BATCHES}, {"max_steps": 2 * NUM_BATCHES}],
}


def check(folder, leg, ends, last):
    path = None
    for number, options in enumerate(ends):
        path = leg(folder, path, number, **options)
    trainer, model = train(module(), resume=path, **last)
    assert model.by_epoch() == whole(3)
    assert len(model.trained) == 3 * NUM_BATCHES == trainer.global_step
    assert trainer.current_epoch == 3


@pytest.mark.long
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("leg", LEGS)
@pytest.mark.parametrize("last", [{"max_epochs": 3}, {"max_steps": 3 * NUM_BATCHES}], ids=["epochs", "steps"])
def test_every_sequence_comes_once_in_every_epoch(tmp_path, leg, ends, last):
    check(tmp_path, leg, ends, last)


@pytest.mark.parametrize("name", ["within the first epoch", "at its end", "within the first and the second"])
@pytest.mark.parametrize("last", [{"max_epochs": 3}, {"max_steps": 3 * NUM_BATCHES}], ids=["epochs", "steps"])
def test_a_checkpoint_saved_by_hand_resumes_where_training_ended(tmp_path, name, last):
    check(tmp_path, leg_by_hand, ENDS[name], last)


def test_one_epoch_is_finished_where_max_epochs_counts_it_as_done(tmp_path):
    path = leg_by_hand(tmp_path, None, 0, max_steps=7)
    _, model = train(module(), resume=path, max_epochs=1)
    assert model.by_epoch() == whole(1)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_another_batch_size_finishes_the_epoch(tmp_path, batch_size):
    path = leg_by_hand(tmp_path, None, 0, max_steps=7)
    trainer, model = train(module(batch_size), resume=path, max_epochs=2)
    assert model.by_epoch() == whole(2)
    assert trainer.current_epoch == 2


def test_one_trainer_goes_on_with_fit(tmp_path):
    """Without a checkpoint in between, and with max_epochs counted as before."""
    data = module()
    trainer, model = train(data, max_steps=7)
    for steps in (12, NUM_BATCHES + 3):
        trainer.fit_loop.epoch_loop.max_steps = steps
        trainer.fit(model, data)
        assert len(model.trained) == steps
    trainer.fit_loop.epoch_loop.max_steps = -1
    trainer.fit_loop.max_epochs = 3
    trainer.fit(model, data)
    assert model.by_epoch() == whole(3)


def test_another_trainer_begins_at_the_beginning():
    data = module()
    train(data, max_steps=7)
    _, model = train(data, max_epochs=1)
    assert model.by_epoch() == whole(1)


def test_a_tuner_takes_nothing_from_training(tmp_path):
    """It trains a while, and sets the Trainer's counts back."""
    from lightning.pytorch.tuner import Tuner

    class Tuned(Model):
        lr = 0.1

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), self.lr)

    data, model = module(), Tuned()
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", default_root_dir=tmp_path, logger=False, enable_progress_bar=False
    )
    Tuner(trainer).lr_find(model, data, num_training=9)
    model.trained.clear()
    trainer.fit(model, data)
    assert model.by_epoch() == whole(2)


def test_limited_epochs_stay_limited(tmp_path):
    """The rest of an epoch that `limit_train_batches` cuts is not made up for."""
    limit = {"limit_train_batches": 5}
    _, expected = train(module(), max_epochs=3, **limit)
    for number, steps in enumerate((3, 5, 8, 10)):
        path = leg_by_hand(tmp_path, None, number, max_steps=steps, **limit)
        _, model = train(module(), resume=path, max_epochs=3, **limit)
        assert model.trained == expected.trained
    _, model = train(module(), resume=path, max_epochs=2)  # without it the cursor's epoch is finished
    assert model.by_epoch()[1] == whole(2)[1]


@pytest.mark.parametrize("steps", [5, NUM_BATCHES // 2, NUM_BATCHES])
def test_independent_epochs_resume_where_they_ended(tmp_path, steps):
    """They have no length, so Lightning fetches a batch ahead, which is not trained on."""

    def fit(resume=None, **options):
        return train(module(mode="independent"), resume=resume, **options)

    trainer, _ = fit(max_steps=steps)
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    _, model = fit(tmp_path / "saved.ckpt", max_epochs=2)
    assert model.by_epoch() == whole(2)


def test_what_max_epochs_leaves_out_is_said(tmp_path):
    path = leg_by_callback(tmp_path, None, 0, max_steps=NUM_BATCHES + 4)
    with pytest.warns(UserWarning, match=r"epoch 1, after 4 of its batches.*max_epochs=1.*max_epochs=2"):
        train(module(), resume=path, max_epochs=1)


def test_epochs_that_grow_are_not_cut(tmp_path):
    """Lightning counts each by the length of the first."""
    skip = {0: f"0:{2 * NUM_BATCHES}"}
    with pytest.raises(ValueError, match=r"epoch 1 has .*reload_dataloaders_every_n_epochs=1"):
        train(module(skip=skip), max_epochs=2)
    _, model = train(module(skip=skip), max_epochs=2, reload_dataloaders_every_n_epochs=1)
    assert model.by_epoch()[1] == whole(2)[1]
    assert sum(model.by_epoch()[0].values()) < NUM_SEQUENCES


def test_epochs_that_shrink_end_early():
    _, model = train(module(skip={1: f"0:{2 * NUM_BATCHES}"}), max_epochs=3)
    assert model.by_epoch() == whole(3) | {1: model.by_epoch()[1]}
    assert max(model.by_epoch()[1].values()) == 1


def test_an_epoch_of_its_own_is_refused():
    with pytest.raises(ValueError, match="epoch has no effect here"):
        module(epoch=3)
