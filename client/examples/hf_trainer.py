r"""Hugging Face's Trainer over packed batches, padding-free, on one process or several.

    torchrun --nproc-per-node 2 client/examples/hf_trainer.py --target 127.0.0.1:50051 --dataset corpus \
        --tokens corpus.idx --vocab-size 8000 --output run

Run it again and it goes on behind the newest checkpoint. The model is a small Llama with random weights; put
`AutoModelForCausalLM.from_pretrained(...)` in its place, with FlashAttention where a GPU has it. The Trainer finds its
epoch by counting steps, so it goes on with as many processes and the same batch size, and refuses others.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from record import Record
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from packhorse.client import PackedDataLoader, create_packed_dataloader


class PackedTrainer(Trainer):
    """A Trainer whose batches come from a PackedDataLoader as they are."""

    def __init__(self, loader: PackedDataLoader, record: Record, **options: Any) -> None:
        super().__init__(**options)
        self.loader = loader
        self.record = record

    def get_train_dataloader(self) -> PackedDataLoader:
        """Returns the loader without accelerate around it, which would deal its batches over the ranks once more."""
        return self.loader

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Takes the cursor out before the model sees the batch."""
        inputs.pop("cursor")
        self.record.add(inputs, inputs["cu_seq_lens_q"])
        return super().training_step(model, inputs, *args, **kwargs)


class CursorCallback(TrainerCallback):
    """Saves the cursor with each checkpoint, and goes on from it.

    When the Trainer saves, it has trained on every batch that it took from the loader, those of accumulated gradients
    included; what was fetched ahead does not count.
    """

    def __init__(self, loader: PackedDataLoader, checkpoint: str | None, stop_after: int | None) -> None:
        self.loader = loader
        self.checkpoint = checkpoint
        self.stop_after = stop_after

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Loads it, now that the Trainer has measured the length of a whole epoch."""
        if self.checkpoint is not None:
            saved = json.loads((Path(self.checkpoint) / "cursor.json").read_text())
            if saved["bins_per_step"] != bins_per_step(args):
                raise SystemExit(
                    f"{self.checkpoint} was saved with {saved['bins_per_step']} bins in a step, now there are "
                    f"{bins_per_step(args)}: the Trainer would count other epochs than the cursor. Go on with as many "
                    "processes, --batch-size and --accumulate as before"
                )
            self.loader.load_state_dict(saved)

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Stops where told to."""
        control.should_save |= state.global_step == self.stop_after
        control.should_training_stop |= state.global_step == self.stop_after

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Saves it; it is the same on every rank."""
        if state.is_world_process_zero:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            saved = self.loader.state_dict() | {"bins_per_step": bins_per_step(args)}
            (checkpoint / "cursor.json").write_text(json.dumps(saved))


def bins_per_step(args: TrainingArguments) -> int:
    """Bins that all processes together train on in one optimizer step."""
    return args.world_size * args.per_device_train_batch_size * args.gradient_accumulation_steps


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
    settings = TrainingArguments(  # made first: it sets up the process group that the loader takes its rank from
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
        ignore_data_skip=True,  # the cursor skips, without reading what was read
        report_to="none",
    )
    checkpoint = get_last_checkpoint(arguments.output) if Path(arguments.output).exists() else None
    loader = create_packed_dataloader(
        arguments.target,
        arguments.dataset,
        arguments.tokens,
        batch_size=arguments.batch_size,
        seed=arguments.seed,
        preset="padding-free",
        device=settings.device,
    )
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=arguments.vocab_size,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            use_cache=False,  # models find sequences in position_ids only where they keep no cache
        )
    )
    callback = CursorCallback(loader, checkpoint, arguments.stop_after)
    trainer = PackedTrainer(loader, Record(arguments.record), model=model, args=settings, callbacks=[callback])
    trainer.train(resume_from_checkpoint=checkpoint)
    loader.close()


if __name__ == "__main__":
    main()
