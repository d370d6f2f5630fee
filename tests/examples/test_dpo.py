"""examples/dpo.py: packed, its loss and gradients are those of the pairs one by one, and TRL's; two processes learn."""

import importlib.util
import json
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

from packhorse.client import pack_pairs

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


@pytest.fixture(scope="module")
def packed(dpo, models, pairs):
    """Loss and gradients of all pairs, packed for two ranks with a batch of one row each."""
    model, reference = models
    batches = pack_pairs(*pairs, max_seq_len=MAX_SEQ_LEN, pad_token_id=0, world_size=2)
    assert 1 < len(batches) < len(pairs[0])
    losses = [dpo.losses_of_pairs(model, reference, batch, BETA, CPU).sum() for batch in batches]
    loss = sum(losses) / len(pairs[0])
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


def test_two_processes_learn_what_is_preferred(models, tokenizer, tmp_path, no_launcher):
    """Answers of vowels are chosen."""
    random = np.random.default_rng(1)
    rows = [
        {"prompt": "".join(random.choice(list(LETTERS), 4)), "chosen": "".join(random.choice(list("aeiou"), n)),
         "rejected": "".join(random.choice(list("kmpst"), 9 - n))}
        for n in random.integers(2, 8, 33)
    ]  # fmt: skip
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for part in (models[0], tokenizer):
        part.save_pretrained(tmp_path / "model")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, "--standalone", SCRIPT]
    command += ["--model", tmp_path / "model", "--pairs", tmp_path / "pairs.jsonl", "--output", tmp_path / "tuned"]
    command += ["--max-seq-len", MAX_SEQ_LEN, "--pairs-per-step", 8, "--epochs", 3, "--learning-rate", 5e-3]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=RUN_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", done.stdout)]
    assert len(losses) == 3 * 5  # the last step of an epoch is of one pair, so one rank has none
    assert losses[0] == pytest.approx(np.log(2), abs=1e-3)  # the reference is the model itself
    assert losses[-1] < 0.3
    assert (tmp_path / "tuned" / "model.safetensors").exists()
