"""`PackedSFTTrainer`: TRL's SFTTrainer on packed batches, resumable under any number of processes.

Owns what is different for SFTTrainer: its options, its first look at the dataset, and its count of tokens. Leaves the
rest to `transformers`.
"""

from typing import Any

from packhorse.client import PackedDataLoader
from packhorse.trainers._data import PackedData
from packhorse.trainers.transformers import PackedTrainerMixin

try:
    from datasets import Dataset
    from transformers import Trainer
    from trl import SFTTrainer
except ModuleNotFoundError as error:
    raise ImportError(f"PackedSFTTrainer needs {error.name}: install packhorse[trl]") from None

_REPLACED_OPTIONS = ("assistant_only_loss", "completion_only_loss")
"""SFTConfig's options that are refused: they choose what is trained on, which the loss mask of packed data does."""


class PackedSFTTrainer(PackedTrainerMixin, SFTTrainer):
    """TRL's SFTTrainer on packed data; see `PackedTrainerMixin`.

    TRL does not tokenize, truncate or pack the data again, so `max_length`, `packing` and `padding_free` have no
    effect. Give the loss mask as `PackedData(…, batch=BatchFormat(loss_mask=…))`.

    Example:
        >>> with_mask = BatchFormat(loss_mask="sft.loss_mask.idx")  # doctest: +SKIP
        >>> trainer = PackedSFTTrainer(
        ...     "my-model",
        ...     SFTConfig("output"),
        ...     train_dataset=PackedData("127.0.0.1:50051", "sft", "sft.idx", batch=with_mask),
        ... )  # doctest: +SKIP
        >>> trainer.train()  # doctest: +SKIP

    Raises:
        ValueError: an option contradicts packed data.
    """

    _total_train_tokens: int
    """SFTTrainer's own count of the tokens trained on, over all processes."""

    def __init__(self, model: Any, args: Any = None, **options: Any) -> None:
        for name in _REPLACED_OPTIONS:
            if getattr(args, name, None):
                raise ValueError(
                    f"{name} has no say over packed data; `packhorse tokenize` writes a loss mask beside the tokens: "
                    "give it as PackedData(…, batch=BatchFormat(loss_mask=…))"
                )
        super().__init__(model, args, **options)

    def evaluate(self, eval_dataset: Any = None, *options: Any, **more: Any) -> Any:
        """Evaluates; for packed data without SFTTrainer's preparation of a dataset."""
        # Of a dict, Trainer.evaluate gives each dataset to this method.
        if isinstance(eval_dataset, PackedData | dict):
            return Trainer.evaluate(self, eval_dataset, *options, **more)
        return super().evaluate(eval_dataset, *options, **more)

    def compute_loss(self, model: Any, inputs: Any, *options: Any, **more: Any) -> Any:
        """Computes the loss, and corrects TRL's `num_tokens`, which takes the length of one row for the whole batch."""
        before, num_rows = self._total_train_tokens, len(inputs["input_ids"])
        loss = super().compute_loss(model, inputs, *options, **more)
        self._total_train_tokens = before + (self._total_train_tokens - before) * num_rows
        self._metrics["train" if self.model.training else "eval"]["num_tokens"] = [self._total_train_tokens]
        return loss

    def _loader(self, data: PackedData, batch_size: int) -> PackedDataLoader:
        """Opens a loader as PackedTrainerMixin does; refuses images."""
        if data.media is not None:
            raise ValueError(
                "PackedSFTTrainer takes no media, since TRL counts tokens by position ids; use PackedTrainer"
            )
        return super()._loader(data, batch_size)

    def _stand_in(self) -> Dataset:
        """Returns a dataset of one tokenized row, since SFTTrainer looks at the first row. It is never trained on."""
        return Dataset.from_dict({"input_ids": [[0, 0]], "labels": [[0, 0]]})
