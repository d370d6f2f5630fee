"""The cursor in the checkpoints of Hugging Face's Trainer: storing it at every step, and reading it again.

Owns its place in `trainer_state.json`, and writing the number of epochs done after each step. Leaves what a Trainer
does after a resume to `trainers/transformers`, and the cursor itself to `packhorse.client.streams`.
"""

import json
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from packhorse.trainers._transformers_batches import TrainingBatches

_STATE_FILE = "trainer_state.json"


class PackhorseCursor(TrainerCallback, ExportableState):
    """A callback that stores the cursor of the last step in the Trainer's own checkpoints.

    The cursor is in `trainer_state.json`, in the entry of `stateful_callbacks` with this class's name. So it is
    written, copied and deleted with the rest of a checkpoint.
    """

    def __init__(self) -> None:
        self.cursor: dict[str, Any] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stores the cursor at which training begins."""
        self.cursor = kwargs["train_dataloader"].state_dict()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stores the cursor of the step's last batch, and corrects the Trainer's number of epochs done."""
        batches: TrainingBatches = kwargs["train_dataloader"]
        self.cursor = batches.state_dict()
        state.epoch = batches.epochs_done(state.epoch)

    def state(self) -> dict[str, Any]:
        """Returns the callback's entry in `trainer_state.json`, in the form of every `ExportableState`."""
        return {"args": {}, "attributes": {"cursor": self.cursor}}


def cursor_of_checkpoint(checkpoint: str | Path) -> dict[str, Any]:
    """Reads the cursor that a checkpoint of a PackedTrainer holds, for any loader's `load_state_dict`.

    Example:
        >>> cursor_of_checkpoint("output/checkpoint-500")["position"]  # doctest: +SKIP
        4000

    Args:
        checkpoint: a folder that the Trainer saved, such as `checkpoint-500`.

    Raises:
        ValueError: the checkpoint holds no cursor.
    """
    path = Path(checkpoint) / _STATE_FILE
    if not path.exists():
        raise ValueError(f"{checkpoint} is no checkpoint of a Trainer: it has no {_STATE_FILE}")
    saved = json.loads(path.read_text()).get("stateful_callbacks", {}).get(PackhorseCursor.__name__, {})
    if not (cursor := saved.get("attributes", {}).get("cursor")):
        raise ValueError(
            f"{checkpoint} holds no cursor, so it does not say which sequences were trained on; resume from a "
            "checkpoint that a PackedTrainer saved, or load this one's weights as the model and train without "
            "resume_from_checkpoint"
        )
    return cursor
