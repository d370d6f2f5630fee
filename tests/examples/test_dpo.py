"""examples/dpo.py: its loss and gradients are those of the pairs one by one, and TRL's; two processes learn."""

import importlib.util
import re
import string
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from packhorse.client import MemoryDatasets, PackedDataset, as_pair_batch, pack_pairs
from packhorse.formats import MegatronWriter
from packhorse.prepare import prepare

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[2] / "client" / "examples" / "dpo.py"
BETA, MAX_SEQ_LEN, EOS, PAD = 0.3, 64, ".", "_"
LETTERS = string.ascii_lowercase
RUN_SECONDS = 150
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def dpo():
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("dpo_example", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tokenizer():
    """A token for each letter."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(PAD + EOS + LETTERS)}, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD)


@pytest.fixture(scope="module")
def models(tokenizer):
    """A small Llama of random weights in float32, and another as its reference."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config), LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def trainer(models, tokenizer, tmp_path_factory):
    """TRL's DPOTrainer, with ten pairs of at most 10 and twice 12 letters."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    random = np.random.default_rng(0)
    rows = [
        {
            name: "".join(random.choice(list(LETTERS), random.integers(1, most + 1)))
            for name, most in (("prompt", 10), ("chosen", 12), ("rejected", 12))
        }
        for _ in range(10)
    ]
    arguments = DPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")),
        beta=BETA,
        per_device_train_batch_size=len(rows),
        max_length=None,
        bf16=False,
        use_cpu=True,
        report_to=[],
    )
    # TRL replaces the models' forward.
    model, reference = (deepcopy(model) for model in models)
    return DPOTrainer(
        model=model,
        ref_model=reference,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )


@pytest.fixture(scope="module")
def pairs(trainer):
    """Token ids of prompts, chosen and rejected answers, as TRL makes them."""
    return [list(trainer.train_dataset[name]) for name in ("prompt_ids", "chosen_ids", "rejected_ids")]


def as_rows(prompts, *answers):
    """Sequences and loss masks of pairs, chosen before rejected, as they stand in a token file."""
    rows = [(prompt, answer) for prompt, *two in zip(prompts, *answers, strict=True) for answer in two]
    return [p + a for p, a in rows], [[False] * len(p) + [True] * len(a) for p, a in rows]


@pytest.fixture(scope="module")
def batches(pairs):
    """All pairs, from a dataset of groups, for two ranks with a batch of one row each."""
    sequences, masks = as_rows(*pairs)
    held = MemoryDatasets({"pairs": sequences}, max_seq_len=MAX_SEQ_LEN, group_size=2)
    shape = {"batch_size": 1, "world_size": 2, "loss_mask": masks}
    ranks = [PackedDataset(held, "pairs", sequences, rank=rank, **shape) for rank in range(2)]
    batches = [as_pair_batch(batch) for dataset in ranks for batch in dataset]
    assert 1 < len(batches) < len(pairs[0])
    return batches


@pytest.fixture(scope="module")
def packed(dpo, models, pairs, batches):
    """Loss and gradients of all pairs."""
    model, reference = models
    loss = sum(dpo.losses_of_pairs(model, reference, batch, BETA, CPU).sum() for batch in batches) / len(pairs[0])
    return loss, gradients(loss, model)


def gradients(loss, model):
    return torch.autograd.grad(loss, list(model.parameters()))


def test_the_loss_is_that_of_plain_loops_over_sequences(packed, models, pairs):
    def log_prob(model, prompt, answer):
        tokens = torch.tensor(prompt + answer)
        table = model(input_ids=tokens[None], use_cache=False).logits[0].log_softmax(-1)
        return sum(table[at - 1, tokens[at]] for at in range(len(prompt), len(tokens)))

    model, reference = models
    losses = []
    for prompt, chosen, rejected in zip(*pairs, strict=True):
        ratios = [log_prob(model, prompt, a) - log_prob(reference, prompt, a) for a in (chosen, rejected)]
        losses.append(-F.logsigmoid(BETA * (ratios[0] - ratios[1])))
    loss = sum(losses) / len(losses)
    torch.testing.assert_close(packed[0], loss)
    torch.testing.assert_close(packed[1], gradients(loss, model))


def test_the_loss_is_that_of_trl(packed, trainer):
    (inputs,) = trainer.get_train_dataloader()
    loss = trainer.compute_loss(trainer.model, inputs)
    torch.testing.assert_close(packed[0], loss)
    torch.testing.assert_close(packed[1], gradients(loss, trainer.model))


def test_each_pair_has_the_loss_that_it_has_packed_at_hand(dpo, models, pairs, batches):
    def by_pair(batches):
        losses = {}
        for batch in batches:
            found = dpo.losses_of_pairs(*models, batch, BETA, CPU).tolist()
            losses.update(zip(batch["pair_ids"][::2].tolist(), found, strict=True))
        return losses

    at_hand = by_pair(pack_pairs(*pairs, max_seq_len=MAX_SEQ_LEN, pad_token_id=0))
    assert at_hand.keys() == set(range(len(pairs[0])))
    assert by_pair(batches) == pytest.approx(at_hand, rel=1e-4)


def test_two_processes_learn_what_is_preferred(models, tokenizer, tmp_path, no_launcher):
    """Answers of vowels are chosen."""
    random = np.random.default_rng(1)
    rows = [
        {"prompt": "".join(random.choice(list(LETTERS), 4)), "chosen": "".join(random.choice(list("aeiou"), n)),
         "rejected": "".join(random.choice(list("kmpst"), 9 - n))}
        for n in random.integers(2, 8, 33)
    ]  # fmt: skip
    words = {name: tokenizer([row[name] for row in rows])["input_ids"] for name in rows[0]}
    answers = ([[*answer, tokenizer.eos_token_id] for answer in words[name]] for name in ("chosen", "rejected"))
    paths = tmp_path / "pairs", tmp_path / "pairs.loss_mask"
    for path, column in zip(paths, as_rows(words["prompt"], *answers), strict=True):
        with MegatronWriter(path, vocab_size=len(tokenizer)) as writer:
            for sequence in column:
                writer.append(np.array(sequence, dtype=np.int64))
    source = {"input": tmp_path / "pairs.idx", "group_size": 2, "max_seq_len": MAX_SEQ_LEN}
    num_bins = prepare(**source, output=tmp_path / "data" / "pairs", progress=False).n_bins
    models[0].save_pretrained(tmp_path / "model")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, "--standalone", SCRIPT]
    command += [
        "--model",
        tmp_path / "model",
        "--output",
        tmp_path / "tuned",
        "--target",
        f"embedded:{tmp_path / 'data'}",
    ]
    command += [
        "--dataset",
        "pairs",
        "--tokens",
        tmp_path / "pairs.idx",
        "--loss-mask",
        tmp_path / "pairs.loss_mask.idx",
    ]
    command += ["--batch-size", 1, "--epochs", 3, "--learning-rate", 5e-3]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=RUN_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = re.findall(r"([0-9]+) pairs: loss ([0-9.]+)", done.stdout)
    losses = [float(loss) for _, loss in steps]
    assert len(losses) == 3 * -(-num_bins // 2)
    assert sum(int(pairs) for pairs, _ in steps) == 3 * len(rows)  # every pair comes once in an epoch
    assert losses[0] == pytest.approx(np.log(2), abs=1e-3)  # the reference is the model itself
    assert losses[-1] < 0.3
    assert (tmp_path / "tuned" / "model.safetensors").exists()
