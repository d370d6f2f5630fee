r"""Hugging Face's Trainer over packed batches, on one process or several.

    torchrun --nproc-per-node 2 client/examples/hf_trainer.py --target 127.0.0.1:50051 --dataset corpus \
        --tokens corpus.idx --vocab-size 8000 --output run

Run it again and it continues after the newest checkpoint, with as many processes, bins in a batch and accumulated
batches as you like. The model is a small Llama with random weights; put `AutoModelForCausalLM.from_pretrained(...)` in
its place. For TRL's SFTTrainer, take `packhorse.trainers.trl.PackedSFTTrainer`.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from record import Record
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from packhorse.trainers import PackedData
from packhorse.trainers.transformers import PackedTrainer


class RecordingTrainer(PackedTrainer):
    """Writes down what it trains on; only `--record` needs this class."""

    record: Record

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Writes down the batch's sequences, which begin at position 0, and trains on it.

        Those without any target are padding, a single token (a first one is never predicted), or wholly masked.
        """
        starts = (inputs["position_ids"].flatten() == 0).nonzero().flatten().tolist()
        labels, num_tokens = inputs["labels"].flatten(), inputs["labels"].numel()
        for start, end in zip(starts, [*starts[1:], num_tokens], strict=True):
            if (labels[start:end] != -100).any():
                self.record.add_sequence(inputs["input_ids"].flatten()[start:end])
        return super().training_step(model, inputs, *args, **kwargs)


class StopAfter(TrainerCallback):
    """Saves and stops after step `num_steps`; None stops nowhere."""

    def __init__(self, num_steps: int | None) -> None:
        self.num_steps = num_steps

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Stops where told to."""
        control.should_save |= state.global_step == self.num_steps
        control.should_training_stop |= state.global_step == self.num_steps


def parsed() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True, help="the server, host:port")
    parser.add_argument("--dataset", required=True, help="a prepared dataset's name")
    parser.add_argument("--tokens", required=True, help="the token file that it was prepared from")
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--output", required=True, help="folder of checkpoints")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--batch-size", type=int, default=4, help="bins for each rank and step")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of each rank for one step")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop-after", type=int, help="step after which to save and leave")
    parser.add_argument("--record", help="folder to write down every sequence in that was trained on")
    return parser.parse_args()


def main() -> None:
    """Trains."""
    arguments = parsed()
    settings = TrainingArguments(
        arguments.output,
        per_device_train_batch_size=arguments.batch_size,
        gradient_accumulation_steps=arguments.accumulate,
        num_train_epochs=arguments.epochs,
        learning_rate=arguments.learning_rate,
        save_steps=arguments.save_every,
        logging_steps=10,
        logging_first_step=True,
        seed=arguments.seed,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
    )
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=arguments.vocab_size,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )
    trainer = RecordingTrainer(
        model,
        settings,
        train_dataset=PackedData(arguments.target, arguments.dataset, arguments.tokens),
        callbacks=[StopAfter(arguments.stop_after)],
    )
    trainer.record = Record(arguments.record)
    checkpoint = get_last_checkpoint(arguments.output) if Path(arguments.output).exists() else None
    trainer.train(resume_from_checkpoint=checkpoint)


if __name__ == "__main__":
    main()
