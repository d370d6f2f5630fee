"""`PackedTrainer`: Hugging Face's Trainer on packed batches, resumable under any number of processes.

`PackedTrainerMixin` does the same for subclasses of that Trainer. Owns correcting the Trainer's counts after a resume
(epochs, steps, the learning rate's schedule). Leaves batches to `packhorse.client.loading`, their keys to
`packhorse.client.presets`, which of them an epoch still has to `_transformers_batches`, and the cursor in checkpoints
to `_transformers_cursor`.
"""

import logging
import math
from typing import Any

import torch

from packhorse.client import LoaderOptions, PackedDataLoader
from packhorse.client.batches import IGNORE_INDEX, Media
from packhorse.client.presets import Preset, PresetName
from packhorse.topology import StreamMode
from packhorse.trainers import sees_other_sequences
from packhorse.trainers._data import PackedData
from packhorse.trainers._transformers_batches import BatchesWithoutCursor, TrainingBatches
from packhorse.trainers._validation import ValidationBatches

try:
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import Trainer
    from transformers.trainer_utils import get_last_checkpoint

    from packhorse.trainers._transformers_cursor import PackhorseCursor, cursor_of_checkpoint
except ModuleNotFoundError as error:
    raise ImportError(f"PackedTrainer needs {error.name}: install packhorse[transformers]") from None

__all__ = ["PackedTrainer", "PackedTrainerMixin", "cursor_of_checkpoint"]

_LOG = logging.getLogger(__name__)


_AnyTrainer: Any = object
"""The mixin's superclass; of type Any, so that a type checker allows its calls of super()."""


class PackedTrainerMixin(_AnyTrainer):
    """Lets a subclass of Hugging Face's Trainer train on packed data and resume within an epoch.

    Put it first: `class MyPackedTrainer(PackedTrainerMixin, MyTrainer)`. The new class takes `PackedData` as
    `train_dataset`, and as `eval_dataset` or as values of its dict. Everything else is as in `MyTrainer`.

    - **Batches** come from the service; `data_collator`, samplers and accelerate do not change them. Batch size, seed,
      ranks, device and workers are those of the TrainingArguments, unless PackedData has its own.
    - **The preset** is `padding-free` if the model runs FlashAttention, else `rows`.
    - **Checkpoints** hold the cursor. `train(resume_from_checkpoint=…)` continues after it, under any number of
      processes, batch size and accumulation. The count of steps continues, and a resumed epoch has only its remaining
      batches. With `num_train_epochs` the learning rate continues at the share of the run that is done, and with
      `max_steps` at the step.
    - **eval_loss** is the mean over all targets. Every sequence counts once, and it does not matter which sequences
      share a row.
    - **A model** whose packed sequences see each other (`sees_other_sequences`) is refused before the first step. A
      subclass that trains such a model anyway sets `may_see_other_sequences = True`.

    Example:
        >>> trainer = PackedTrainer(
        ...     model=model,
        ...     args=TrainingArguments("output"),
        ...     train_dataset=PackedData("127.0.0.1:50051", "corpus", "corpus.idx"),
        ... )  # doctest: +SKIP
        >>> trainer.train(resume_from_checkpoint=get_last_checkpoint("output"))  # doctest: +SKIP

    Args:
        model: as the trainer takes it.
        args: the trainer's TrainingArguments.
        train_dataset: the training data; None to evaluate only.
        eval_dataset: PackedData, any dataset of the trainer, or a dict of both.
        options: further arguments of the trainer.

    Raises:
        ValueError: an option contradicts packed data.
    """

    may_see_other_sequences: bool = False
    """Whether a model is trained even if its packed sequences see each other."""
    train_dataset: PackedData | None
    """The training data."""
    eval_dataset: Any
    """The validation data, or a dict of several."""
    _batches: TrainingBatches | None = None
    """The training batches, once training has begun."""
    _resumed: dict[str, Any] | None = None
    """The cursor of the checkpoint to resume from; None for a run from the beginning."""
    _steps_done: int | None = None
    """After a resume with num_train_epochs: the schedule's steps that are done."""
    _sums: torch.Tensor | None = None
    """During an evaluation: sum of losses and number of targets, float64 [2]."""

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *,
        train_dataset: PackedData | None = None,
        eval_dataset: Any = None,
        **options: Any,
    ) -> None:
        if not isinstance(train_dataset, PackedData | None):
            raise TypeError(
                f"train_dataset must be PackedData, got {type(train_dataset).__name__}; the trainer without packing "
                "takes others"
            )
        if options.get("data_collator") is not None:
            raise ValueError("data_collator has no part in packed batches; leave it out, or give PackedData a preset")
        # By the id of the data, which stays here: another object would get the id of one that is gone.
        self._validation: dict[int, tuple[PackedData, ValidationBatches]] = {}
        self._presets_asked: set[str] = set()
        stand_in = self._stand_in()
        super().__init__(
            model,
            args,
            train_dataset=stand_in,
            eval_dataset=_replaced(eval_dataset, stand_in),
            **options,
        )
        # The trainer has prepared other datasets; PackedData takes the place of its stand-in again.
        if isinstance(eval_dataset, dict):
            packed = {name: data for name, data in eval_dataset.items() if isinstance(data, PackedData)}
            self.eval_dataset = self.eval_dataset | packed
        elif isinstance(eval_dataset, PackedData):
            self.eval_dataset = eval_dataset
        self.train_dataset = train_dataset
        self._refuse_what_cuts_rows()
        self.add_callback(PackhorseCursor())

    def _stand_in(self) -> Any:
        """Returns a dataset to give to the trainer's constructor in place of PackedData; None if it needs none."""
        return None

    def _refuse_what_cuts_rows(self) -> None:
        """Refuses nn.DataParallel, and parallelism that attends across the sequences of a row."""
        if self.args.n_gpu > 1:
            raise ValueError(
                f"one process sees {self.args.n_gpu} GPUs, over which nn.DataParallel would cut packed rows; start a "
                "process for each with torchrun or accelerate launch, or set CUDA_VISIBLE_DEVICES to one"
            )
        if self.get_cp_size() > 1 or self.get_sp_size() > 1:
            raise ValueError(
                "context and sequence parallelism of accelerate attend over whole rows, across the sequences packed "
                "there; train with cp_size=1 and sp_size=1, or on sequences that are not packed"
            )

    def train(self, resume_from_checkpoint: str | bool | None = None, **options: Any) -> Any:
        """Trains as the trainer does; `resume_from_checkpoint` (True: the last one) continues after its cursor."""
        checkpoint = resume_from_checkpoint or None
        if checkpoint is True:
            checkpoint = get_last_checkpoint(self.args.output_dir)
            if checkpoint is None:
                raise ValueError(f"there is no checkpoint in {self.args.output_dir} to resume from")
        self._resumed = None if checkpoint is None else cursor_of_checkpoint(checkpoint)
        try:
            return super().train(resume_from_checkpoint=checkpoint, **options)
        finally:
            self._close()

    def get_train_dataloader(self) -> TrainingBatches:
        """Returns this process's training batches, which accelerate does not divide again."""
        if self.train_dataset is None:
            raise ValueError("training wants train_dataset=PackedData(…)")
        if self._batches is not None:
            self._batches.close()
        self._batches = TrainingBatches(self._loader(self.train_dataset, self._train_batch_size))
        if self._resumed is not None:
            self._batches.resume(self._resumed)
        return self._batches

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """Returns the trainer's planned numbers; after a resume with `max_steps`, with enough epochs to reach them."""
        num_epochs, *others = super().set_initial_training_values(args, dataloader)
        if args.max_steps > 0 and self._resumed is not None:
            num_epochs += dataloader.epoch + 1
        return num_epochs, *others

    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, *options: Any
    ) -> tuple[int, int]:
        """Returns (the epoch to begin with, 0 batches to skip in it); after a resume also sets the last step."""
        super()._init_training_state(max_steps, num_update_steps_per_epoch, num_train_epochs, *options)
        if self._resumed is None:
            return 0, 0
        batches = self._batches
        assert batches is not None
        if self.args.max_steps <= 0:
            # Steps of the run that are done, in steps of this run's shape: all but those that remain of this epoch.
            done = (batches.epoch + 1) * num_update_steps_per_epoch - self._updates(batches.num_left)
            self._steps_done = min(done, max_steps)
            self.state.max_steps = self.state.global_step + max_steps - self._steps_done
        return batches.epoch, 0

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        """Loads both from a checkpoint, and moves the schedule to the share of the run that is done."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if self._steps_done not in (None, self.state.global_step) and isinstance(self.lr_scheduler, LambdaLR):
            _set_step(self.lr_scheduler, self._steps_done)

    def _run_epoch(self, *, epoch: int, steps_in_epoch: int, num_update_steps_per_epoch: int, **options: Any) -> None:
        """Trains on the remaining batches of an epoch; optimizer steps are counted from the first of them."""
        assert self._batches is not None
        self._batches.set_epoch(epoch)
        num_left = self._batches.num_left
        super()._run_epoch(
            epoch=epoch, steps_in_epoch=num_left, num_update_steps_per_epoch=self._updates(num_left), **options
        )

    def _updates(self, num_batches: int) -> int:
        """Returns the number of optimizer steps in this number of this process's batches."""
        return math.ceil(num_batches / self.args.gradient_accumulation_steps)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Returns the batches of a validation set, the same in every evaluation."""
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(data, str):
            data = self.eval_dataset[data]
        if not isinstance(data, PackedData):
            return super().get_eval_dataloader(eval_dataset)
        if id(data) not in self._validation:
            loader = self._loader(data, self.args.per_device_eval_batch_size)
            self._validation[id(data)] = (data, ValidationBatches(loader))
        _, batches = self._validation[id(data)]
        return BatchesWithoutCursor(batches)

    def evaluation_loop(self, dataloader: Any, *options: Any, metric_key_prefix: str = "eval", **more: Any) -> Any:
        """Evaluates as the trainer does; for packed data the loss is the mean over all targets of all processes."""
        if not isinstance(dataloader, BatchesWithoutCursor):
            return super().evaluation_loop(dataloader, *options, metric_key_prefix=metric_key_prefix, **more)
        self._sums = torch.zeros(2, dtype=torch.float64, device=self.args.device)
        output = super().evaluation_loop(dataloader, *options, metric_key_prefix=metric_key_prefix, **more)
        losses, num_targets = self.accelerator.reduce(self._sums, "sum").tolist()
        output.metrics[f"{metric_key_prefix}_loss"] = losses / max(num_targets, 1)
        self._sums = None
        return output

    def prediction_step(self, model: Any, inputs: Any, *options: Any, **more: Any) -> Any:
        """Predicts as the trainer does; for packed data it also adds up losses, each times its number of targets."""
        loss, logits, labels = super().prediction_step(model, inputs, *options, **more)
        if self._sums is not None and loss is not None:
            num_targets = inputs["labels"].ne(IGNORE_INDEX).sum().to(self._sums.device)
            if num_targets:
                self._sums += torch.stack([loss.detach().double() * num_targets, num_targets.double()])
        return loss, logits, labels

    def _loader(self, data: PackedData, batch_size: int) -> PackedDataLoader:
        """Opens a loader, with the trainer's values for those that the data leaves out."""
        args = self.args
        attention = str(getattr(getattr(self.model, "config", None), "_attn_implementation", ""))
        preset: PresetName = "padding-free" if "flash" in attention else "rows"
        options = LoaderOptions(
            num_workers=args.dataloader_num_workers or LoaderOptions().num_workers,
            prefetch_factor=args.dataloader_prefetch_factor or LoaderOptions().prefetch_factor,
            device=args.device,
            rank=getattr(self.accelerator.state, "device_mesh", None),
        )
        data.refuse_schedule("a Trainer counts every epoch by its own batch size; loop over a loader yourself")
        self._refuse_model_that_sees_others(data.own_preset or preset, data.media)
        loader = data.open(
            batch_size=batch_size,
            seed=args.seed if args.data_seed is None else args.data_seed,
            preset=preset,
            accumulation=args.gradient_accumulation_steps,
            loader=options,
        )
        if loader.dataset.topology.mode is StreamMode.INDEPENDENT:
            raise ValueError("mode 'independent' gives an epoch no length, by which a Trainer counts; leave it out")
        return loader

    def _refuse_model_that_sees_others(self, preset: str | Preset | None, media: Media | None) -> None:
        """Refuses a model whose packed sequences see each other; tests it once for each preset.

        A model that cannot be tested is trained, and the log says why it could not.
        """
        if self.may_see_other_sequences or preset is None:
            return
        name = preset if isinstance(preset, str) else preset.name
        if name in self._presets_asked:
            return
        self._presets_asked.add(name)
        model = type(self.model).__name__
        try:
            sees = sees_other_sequences(self.model, preset, media)
        except Exception as error:  # a user's model may raise anything
            _LOG.warning("%s could not be asked whether packed sequences see each other: %s", model, error)
            return
        if sees:
            raise ValueError(
                f"packed sequences would see each other in {model} with attn_implementation="
                f"{self.model.config._attn_implementation!r}: it does not find their borders in preset {name!r}. "
                "Take FlashAttention if the model has it (attn_implementation='flash_attention_2'), or "
                "PackedData(preset='padding-free') if it has linear attention, or give a loop of your own "
                "attention_mask=build_packing_attention_bias(…); a subclass of the trainer with "
                "may_see_other_sequences = True trains it as it is"
            )

    def _close(self) -> None:
        """Ends the workers of all loaders."""
        if self._batches is not None:
            self._batches.close()
        for _, batches in self._validation.values():
            batches.close()


class PackedTrainer(PackedTrainerMixin, Trainer):
    """Hugging Face's Trainer on packed data; see `PackedTrainerMixin`.

    Example:
        >>> data = PackedData("127.0.0.1:50051", "corpus", "corpus.idx")
        >>> PackedTrainer(model, TrainingArguments("output"), train_dataset=data).train()  # doctest: +SKIP
    """


def _replaced(eval_dataset: Any, stand_in: Any) -> Any:
    """Returns an eval_dataset for the trainer's constructor, with a stand-in for each PackedData."""
    if stand_in is None:
        return eval_dataset
    if isinstance(eval_dataset, dict):
        return {name: stand_in if isinstance(data, PackedData) else data for name, data in eval_dataset.items()}
    return stand_in if isinstance(eval_dataset, PackedData) else eval_dataset


def _set_step(scheduler: LambdaLR, num_steps: int) -> None:
    """Sets a learning rate's schedule to its state after this number of steps."""
    scheduler.last_epoch = num_steps
    rates = [
        base * factor_of(num_steps) for base, factor_of in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    ]
    for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    scheduler._last_lr = rates
