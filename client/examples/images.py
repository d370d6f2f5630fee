r"""Images: a tiny Qwen2.5-VL trains on packed chats with pictures, under DistributedDataParallel.

    python client/examples/images.py --make 400 --data colours
    packhorse prepare --input colours/chats.idx --max-seq-len 128 --output datasets/colours
    packhorse serve --data-root datasets --listen 127.0.0.1:50051
    torchrun --nproc-per-node 2 client/examples/images.py --data colours --target 127.0.0.1:50051 --dataset colours \
        --checkpoint run.pt

The first command writes pictures of one colour each, chats about them, a model, and the chats' tokens. Kill the server
or the training at any time and start it again, with as many processes as you like.
"""

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from record import Record
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from packhorse.client import BatchFormat, create_packed_dataloader
from packhorse.losses import LossCounts
from packhorse.sft import MaskedTokenWriter, encode_chat
from packhorse.vision import media_of

LOG_EVERY_STEPS = 10
COLOURS = {"red": (220, 30, 30), "green": (30, 200, 60), "blue": (40, 60, 220), "white": (250, 250, 250)}
SPECIAL = ("<pad>", "<|user|>", "<|assistant|>", "<|end|>", "<|start|>", "<|image|>", "<|stop|>")
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|> {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|start|> <|image|> <|stop|> {% else %}{{ part['text'] }} {% endif %}"
    "{% endfor %}<|end|> {% endfor %}"
)


class Pictures:
    """The pictures of chats, by the number of a chat: what `media_of` takes as `load`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chats = [json.loads(line)["messages"] for line in (folder / "chats.jsonl").read_text().splitlines()]
        self.processor = AutoImageProcessor.from_pretrained(folder / "model")

    def of_chat(self, number: int) -> Mapping[str, torch.Tensor]:
        """Returns `pixel_values` and `image_grid_thw` of one chat's pictures, in their order."""
        parts = [part for message in self.chats[number] for part in message["content"]]
        images = [Image.open(self.folder / part["image"]) for part in parts if part["type"] == "image"]
        return self.processor(images=images, return_tensors="pt")

    def __call__(self, ids: list[int]) -> dict[int, Mapping[str, torch.Tensor]]:
        """Returns the same of several chats."""
        return {number: self.of_chat(number) for number in ids}


def make(folder: Path, num_chats: int) -> None:
    """Writes pictures, chats about them, a model, and the chats' tokens with a loss mask; the same each time."""
    random = np.random.default_rng(0)
    (folder / "pictures").mkdir(parents=True)
    with (folder / "chats.jsonl").open("w") as file:
        for number in range(num_chats):
            digits = " ".join(str(number))  # a word, and so a token, for each
            question, colours = [{"type": "text", "text": f"chat {digits} :"}], []
            for i in range(random.integers(-4, 4)):  # more than half of the chats have no picture
                colours.append(random.choice(list(COLOURS)))
                size = random.integers(12, 40, 2).tolist()
                Image.new("RGB", size, COLOURS[colours[-1]]).save(folder / "pictures" / f"{number}-{i}.png")
                if i > 0:
                    question.append({"type": "text", "text": "and"})
                question.append({"type": "image", "image": f"pictures/{number}-{i}.png"})
            answer = [{"type": "text", "text": " ".join(colours) or "nothing"}]
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            print(json.dumps({"messages": messages}), file=file)
    make_model(folder / "model")
    tokenize(folder)


def make_model(folder: Path) -> None:
    """Writes the configuration of a tiny model, its image processor and its tokenizer, a token for each word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2VLImageProcessorPil

    words = [*SPECIAL, *COLOURS, "nothing", "chat", "and", ":", *"0123456789"]
    of_words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    of_words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=of_words, pad_token="<pad>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    size = {"shortest_edge": 16 * 16, "longest_edge": 64 * 64}
    Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, size=size).save_pretrained(folder)
    Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(words),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "bos_token_id": None,
            "eos_token_id": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]},
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "depth": 2,
            "num_heads": 2,
            "patch_size": 4,
            "window_size": 16,
            "fullatt_block_indexes": [1],
            "out_hidden_size": 64,
        },
        image_token_id=words.index("<|image|>"),
        video_token_id=len(words) - 1,  # must be some token; the data has no video
        vision_start_token_id=words.index("<|start|>"),
        vision_end_token_id=words.index("<|stop|>"),
    ).save_pretrained(folder)


def tokenize(folder: Path) -> None:
    """Writes the chats' tokens, in which an image is as many image tokens as it has embeddings."""
    tokenizer, pictures = AutoTokenizer.from_pretrained(folder / "model"), Pictures(folder)
    image_token_id = tokenizer.convert_tokens_to_ids("<|image|>")
    with MaskedTokenWriter(folder / "chats", vocab_size=len(tokenizer)) as writer:
        for number, messages in enumerate(pictures.chats):
            encoded = encode_chat(messages, tokenizer)
            is_image, repeats = encoded.input_ids == image_token_id, np.ones_like(encoded.input_ids)
            if is_image.any():
                grids = pictures.of_chat(number)["image_grid_thw"].numpy()  # patches of each picture: [pictures, 3]
                patches_per_embedding = pictures.processor.merge_size**2
                repeats[is_image] = grids.prod(1) // patches_per_embedding
            writer.append(encoded.input_ids.repeat(repeats), encoded.loss_mask.repeat(repeats))


def parsed() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the chats, their pictures and the model")
    parser.add_argument("--make", type=int, help="write this number of chats to the folder, and stop")
    parser.add_argument("--target", help="the server, host:port")
    parser.add_argument("--dataset", help="a prepared dataset's name")
    parser.add_argument("--checkpoint", type=Path, help="file to go on from, and to save to")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--batch-size", type=int, default=1, help="bins for each rank and step")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop-after", type=int, help="steps after which to save and leave")
    parser.add_argument("--record", help="folder to write down every sequence and image in that was trained on")
    arguments = parser.parse_args()
    missing = [name for name in ("target", "dataset", "checkpoint") if getattr(arguments, name) is None]
    if arguments.make is None and missing:
        parser.error(f"to train, give --{', --'.join(missing)}; to make data, --make")
    return arguments


def main() -> None:
    """Makes data, or trains."""
    arguments = parsed()
    if arguments.make is not None:
        make(arguments.data, arguments.make)
        return
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.manual_seed(arguments.seed)
    is_first = dist.get_rank() == 0

    config = AutoConfig.from_pretrained(arguments.data / "model")
    form = BatchFormat(
        loss_mask=arguments.data / "chats.loss_mask.idx", media=media_of(config, Pictures(arguments.data))
    )
    loader = create_packed_dataloader(
        arguments.target,
        arguments.dataset,
        arguments.data / "chats.idx",
        batch_size=arguments.batch_size,
        seed=arguments.seed,
        device=device,
        batch=form,
    )
    model = DistributedDataParallel(Qwen2_5_VLForConditionalGeneration(config).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    if arguments.checkpoint.exists():
        saved = torch.load(arguments.checkpoint, map_location=device, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["cursor"])  # under any number of ranks and workers and any batch size

    def save() -> None:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"cursor": loader.state_dict()}, f"{arguments.checkpoint}.new")
        os.replace(f"{arguments.checkpoint}.new", arguments.checkpoint)  # whole, or not at all

    num_steps, record = 0, Record(arguments.record)
    pictures = Record(None if arguments.record is None else f"{arguments.record}-pictures")
    for _ in loader.epochs(arguments.epochs):
        for batch in loader:
            loss = loss_of(model, batch, device)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            num_steps += 1
            record.add(batch, batch["cu_seqlens"])
            for sequence_id, pixels in zip(batch["media"].ids.tolist(), images_of(batch), strict=True):
                pictures.add_sequence(torch.tensor([sequence_id, int(pixels.sum())]))  # whose it is, and a checksum
            mean = loss.detach() / dist.get_world_size()
            dist.all_reduce(mean)
            if is_first and num_steps % LOG_EVERY_STEPS == 1:
                print(f"step {num_steps}: loss {mean.item():.4f}", flush=True)
            if is_first and num_steps % arguments.save_every == 0:
                save()
            if num_steps == arguments.stop_after:
                break
        if num_steps == arguments.stop_after:
            break
    if is_first and num_steps:
        save()
    loader.close()
    dist.destroy_process_group()


def images_of(batch: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """Returns the pixels of each image of a batch."""
    if not batch["media"].keys:
        return ()
    return batch["pixel_values"].split(batch["image_grid_thw"].prod(1).tolist())


def loss_of(model: DistributedDataParallel, batch: dict[str, Any], device: torch.device) -> torch.Tensor:
    """Returns the mean over all targets of all ranks, times the ranks, over which DDP averages gradients."""
    counts = LossCounts.of_batch(batch).all_reduce(device=device)
    inputs = {name: batch[name] for name in ("input_ids", "position_ids", "labels", *batch["media"].keys)}
    targets_per_rank = counts.num_targets / dist.get_world_size()
    loss = model(**inputs, num_items_in_batch=targets_per_rank, use_cache=False).loss
    if not batch["media"].keys:  # DDP waits for gradients of the vision tower, which has no part in this batch
        loss = loss + 0 * sum(weights.sum() for weights in model.module.model.visual.parameters())
    return loss


if __name__ == "__main__":
    main()
