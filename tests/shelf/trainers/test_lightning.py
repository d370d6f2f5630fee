"""PackedDataModule: Lightning's own loop, checkpoints and ranks over packed batches."""

import json
import logging
import subprocess
import sys
from collections import Counter

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from packhorse.trainers import PackedData, PackedDataModule

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice about workers, loggers and checkpoint folders


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Recorder(LightningModule):
    """A model that notes which batches it was trained on."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(60_000, 2)
        self.cursors, self.batches = [], []

    def training_step(self, batch, batch_index):
        self.cursors.append(batch["cursor"])
        self.batches.append(batch)
        return self.embedding(batch["input_ids"]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.fixture
def fit(running_server, corpus, tmp_path):
    """Function: trains, and returns the Recorder."""

    def run(
        max_epochs,
        *,
        resume=None,
        num_workers=0,
        every_n_train_steps=None,
        batch_size=32,
        model=None,
        callbacks=(),
        **options,
    ):
        data = PackedDataModule(
            PackedData(
                running_server.target, "rows", corpus.megatron, batch_size=batch_size, seed=3, num_workers=num_workers
            )
        )
        saving = ModelCheckpoint(
            tmp_path,
            save_top_k=-1,
            filename="{step}" if every_n_train_steps else "end-{epoch}",
            every_n_train_steps=every_n_train_steps,
        )
        trainer = Trainer(
            max_epochs=max_epochs,
            accelerator="cpu",
            logger=False,
            callbacks=[saving, *callbacks],
            enable_progress_bar=False,
            enable_model_summary=False,
            **options,
        )
        model = model or Recorder()
        trainer.fit(model, data, ckpt_path=resume)
        return model

    return run


@pytest.mark.parametrize("num_workers", [0, 2])
def test_trains_on_the_dataset_s_epochs(fit, make_dataset, assert_same_batches, num_workers):
    model = fit(2, num_workers=num_workers)
    expected = [batch for epoch in (0, 1) for batch in make_dataset(batch_size=32, epoch=epoch)]
    assert_same_batches(model.batches, expected)


def test_resumes_behind_the_batch_of_any_checkpoint(fit, tmp_path):
    cursors = fit(2, every_n_train_steps=3).cursors
    per_epoch = len(cursors) // 2
    assert {cursor["epoch"] for cursor in cursors[:per_epoch]} == {0}
    saved = sorted(int(path.stem.removeprefix("step=")) for path in tmp_path.glob("step=*.ckpt"))
    assert len(saved) == len(cursors) // 3
    for step in (saved[0], saved[len(saved) // 2 - 1], saved[-1]):
        assert fit(2, resume=tmp_path / f"step={step}.ckpt").cursors == cursors[step:]


def test_resumes_with_the_next_epoch_after_a_whole_one(fit, tmp_path):
    cursors = fit(3).cursors
    per_epoch = len(cursors) // 3
    for epoch in (0, 1):
        model = fit(3, resume=tmp_path / f"end-epoch={epoch}.ckpt")
        assert model.cursors == cursors[(epoch + 1) * per_epoch :]


def ids_by_epoch(*models):
    """Counter of ids for every epoch."""
    seen = {}
    for model in models:
        for batch in model.batches:
            seen.setdefault(batch["cursor"]["epoch"], Counter()).update(batch["ids"].tolist())
    return seen


@pytest.mark.parametrize("batch_size", [pytest.param(3, marks=pytest.mark.long), 13, 1000])
def test_resumes_under_another_batch_size_and_misses_and_repeats_nothing(fit, tmp_path, batch_size):
    """The Trainer counts batches up to the length of an epoch, which is another one now."""
    fit(1, every_n_train_steps=4, batch_size=8)
    for step in (4, 48):
        first = Recorder()
        fit(1, model=first, batch_size=8, limit_train_batches=step)
        second = fit(3, resume=tmp_path / f"step={step}.ckpt", batch_size=batch_size)
        assert ids_by_epoch(first, second) == {epoch: Counter(range(2000)) for epoch in range(3)}
        assert second.trainer.current_epoch == 3
        count = second.trainer.fit_loop.epoch_loop.batch_progress.current
        assert count.completed == second.trainer.num_training_batches


class StoppedError(Exception):
    pass


def test_a_batch_that_was_not_trained_on_comes_again(fit, tmp_path):
    """An exception comes between handing out and training."""

    class Stopping(Recorder):
        def training_step(self, batch, batch_index):
            if batch_index == 5:
                raise StoppedError
            return super().training_step(batch, batch_index)

    first = Stopping()
    with pytest.raises(StoppedError):
        fit(1, model=first, callbacks=[OnExceptionCheckpoint(tmp_path)])
    second = fit(1, resume=tmp_path / "on_exception.ckpt")
    assert ids_by_epoch(first, second) == {0: Counter(range(2000))}


def test_accumulated_gradients_and_a_limit_keep_the_cursor(fit, tmp_path):
    cursors = fit(1, every_n_train_steps=2, accumulate_grad_batches=2, limit_train_batches=8).cursors
    assert len(cursors) == 8
    model = fit(1, resume=tmp_path / "step=2.ckpt", accumulate_grad_batches=2, limit_train_batches=8)
    assert model.cursors == cursors[4:]


class Validating(Recorder):
    """Notes what it was validated on, run by run."""

    def __init__(self):
        super().__init__()
        self.runs = []

    def on_validation_epoch_start(self):
        self.runs.append([])

    def validation_step(self, batch, batch_index):
        self.runs[-1].append(batch)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_validation_set_comes_whole_and_the_same_each_time(
    running_server, corpus, assert_same_batches, sequences_of, whole, num_workers
):
    """In the middle of epochs too, behind a look at its first batches, without any effect on training."""
    data = PackedDataModule(
        PackedData(running_server.target, "rows", corpus.megatron, batch_size=32, seed=3, num_workers=num_workers),
        validation=PackedData(running_server.target, "truncated", corpus.megatron, batch_size=7),
    )
    options = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(max_epochs=2, val_check_interval=4, num_sanity_val_steps=2, enable_checkpointing=False, **options)
    model = Validating()
    trainer.fit(model, data)
    looked_at, *runs = model.runs
    assert len(looked_at) == 2
    assert len(runs) > 4
    for batches in runs:
        assert_same_batches(batches, runs[0])
    assert sequences_of(runs[0]) == whole("truncated")
    assert ids_by_epoch(model) == {0: Counter(range(2000)), 1: Counter(range(2000))}


def test_max_steps_end_within_an_epoch_and_are_gone_on_behind(fit, tmp_path):
    first = fit(-1, max_steps=9, every_n_train_steps=9)
    assert len(first.batches) == 9
    second = fit(2, resume=tmp_path / "step=9.ckpt")
    assert ids_by_epoch(first, second) == {0: Counter(range(2000)), 1: Counter(range(2000))}


def test_other_batches_go_lightning_s_way(running_server, corpus):
    data = PackedDataModule(PackedData(running_server.target, "rows", corpus.megatron, batch_size=4))
    moved = data.transfer_batch_to_device({"tensor": torch.zeros(2)}, torch.device("meta"), 0)
    assert moved["tensor"].device.type == "meta"


RANKS = """
import json, sys, torch
from lightning.pytorch import LightningModule, Trainer
from packhorse.trainers import PackedData, PackedDataModule

class Recorder(LightningModule):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(60_000, 2)
    def training_step(self, batch, batch_index):
        tokens = batch["input_ids"][batch["attention_mask"].bool()]
        ends = batch["cu_seqlens"].tolist()
        with open(f"{sys.argv[3]}/{self.trainer.global_rank}", "a") as record:
            for start, end in zip(ends, ends[1:]):
                print(json.dumps(tokens[start:end].tolist()), file=record)
        return self.embedding(batch["input_ids"]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

if __name__ == "__main__":
    data = PackedDataModule(PackedData(sys.argv[1], "rows", sys.argv[2], batch_size=32, num_workers=1, seed=3))
    trainer = Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False,
                      enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False)
    trainer.fit(Recorder(), data, ckpt_path=(sys.argv + [None])[4])
"""


@pytest.fixture
def came_to_two_ranks(running_server, corpus, tmp_path, no_launcher):
    """Function: trains in two processes, and returns each one's Counter of token tuples."""

    def run(*checkpoint):
        script = tmp_path / "train.py"
        script.write_text(RANKS)
        command = [sys.executable, script, running_server.target, corpus.megatron, tmp_path, *checkpoint]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return [
            Counter(tuple(json.loads(line)) for line in (tmp_path / str(rank)).read_text().splitlines())
            for rank in range(2)
        ]

    return run


@pytest.mark.long
def test_ranks_share_an_epoch(came_to_two_ranks, whole):
    came = came_to_two_ranks()
    assert min(map(len, came)) > 500
    assert came[0] + came[1] == whole("rows")


@pytest.mark.long
def test_two_ranks_go_on_where_one_stopped(came_to_two_ranks, fit, tmp_path, whole, sequences_of):
    first = fit(1, batch_size=8, every_n_train_steps=7, limit_train_batches=9)
    came = came_to_two_ranks(tmp_path / "step=7.ckpt")
    assert came[0] + came[1] + sequences_of(first.batches[:7]) == whole("rows")


WITHOUT = """
import sys
class NoLightning:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "lightning":
            raise ModuleNotFoundError("No module named 'lightning'", name="lightning")
sys.meta_path.insert(0, NoLightning())
from packhorse.trainers import PackedData, PackedDataModule
try:
    PackedDataModule(PackedData("127.0.0.1:1", "rows", [], batch_size=1))
except ImportError as error:
    assert "packhorse[lightning]" in str(error), error
else:
    raise SystemExit("no error")
"""


def test_without_lightning_only_its_use_fails():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
