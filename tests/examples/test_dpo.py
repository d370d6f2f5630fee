"""examples/dpo.py: it has the loss of the pairs one by one, and TRL's; two processes learn, and go on after a stop."""

import importlib.util
import re
import shutil
import string
import subprocess
import sys
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.flat_words import packed_dataset, prepare

from packhorse.client import MemoryDatasets
from packhorse.formats import MegatronWriter
from packhorse.rollouts import as_pair_batch, pack_pairs

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
    ranks = [packed_dataset(held, "pairs", sequences, rank=rank, **shape) for rank in range(2)]
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


@dataclass(frozen=True)
class Step:
    """What the example printed of one."""

    epoch: int
    num_pairs: int
    loss: float


class Preferences:
    """33 pairs as files, of which answers of vowels are chosen, and the example run on them."""

    def __init__(self, folder, model, tokenizer):
        random = np.random.default_rng(1)
        rows = [
            {"prompt": "".join(random.choice(list(LETTERS), 4)), "chosen": "".join(random.choice(list("aeiou"), n)),
             "rejected": "".join(random.choice(list("kmpst"), 9 - n))}
            for n in random.integers(2, 8, 33)
        ]  # fmt: skip
        words = {name: tokenizer([row[name] for row in rows])["input_ids"] for name in rows[0]}
        answers = ([[*answer, tokenizer.eos_token_id] for answer in words[name]] for name in ("chosen", "rejected"))
        columns = as_rows(words["prompt"], *answers)
        for path, column in zip((folder / "pairs", folder / "pairs.loss_mask"), columns, strict=True):
            with MegatronWriter(path, vocab_size=len(tokenizer)) as writer:
                for sequence in column:
                    writer.append(np.array(sequence, dtype=np.int64))
        source = {"input": folder / "pairs.idx", "group_size": 2, "max_seq_len": MAX_SEQ_LEN}
        self.num_pairs = len(rows)
        self.num_bins = prepare(**source, output=folder / "data" / "pairs", progress=False).num_bins
        self.folder = folder
        model.save_pretrained(folder / "model")

    def train(self, *flags, processes=2):
        """Runs the example for up to three epochs; returns its steps. Each takes a row for each of two ranks."""
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", processes, "--standalone", SCRIPT]
        command += ["--model", "model", "--data", "data/pairs", "--batch-size", 2 // processes, "--epochs", 3]
        command += ["--learning-rate", 5e-3, *flags]
        done = subprocess.run(
            [*map(str, command)], cwd=self.folder, capture_output=True, text=True, timeout=RUN_SECONDS
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found = re.findall(r"epoch ([0-9]+), step [0-9]+, ([0-9]+) pairs: loss ([0-9.]+)", done.stdout)
        return [Step(int(epoch), int(num_pairs), float(loss)) for epoch, num_pairs, loss in found]


@pytest.fixture(scope="module")
def preferences(models, tokenizer, tmp_path_factory):
    return Preferences(tmp_path_factory.mktemp("preferences"), models[0], tokenizer)


@pytest.fixture(scope="module")
def undisturbed(preferences):
    """The steps of three epochs by two processes."""
    return preferences.train("--checkpoint", "undisturbed.pt", "--output", "tuned")


def test_two_processes_learn_what_is_preferred(preferences, undisturbed):
    assert len(undisturbed) == 3 * -(-preferences.num_bins // 2)
    assert sum(step.num_pairs for step in undisturbed) == 3 * preferences.num_pairs  # each comes once in an epoch
    assert undisturbed[0].loss == pytest.approx(np.log(2), abs=1e-3)  # the reference is the model itself
    assert undisturbed[-1].loss < 0.3
    assert (preferences.folder / "tuned" / "model.safetensors").exists()


@pytest.fixture(scope="module")
def stopped(preferences, undisturbed):
    """The steps of a run that saves and leaves in the middle of its second epoch; it leaves `stopped.pt`."""
    return preferences.train("--checkpoint", "stopped.pt", "--stop-after", len(undisturbed) // 2)


@pytest.mark.parametrize("processes", [1, 2])
def test_it_goes_on_where_it_stood(preferences, undisturbed, stopped, processes):
    """With the losses of a run that never stopped, so with its pairs, model, optimizer and reference."""
    shutil.copy(preferences.folder / "stopped.pt", preferences.folder / "again.pt")
    steps = stopped + preferences.train("--checkpoint", "again.pt", processes=processes)
    assert len(stopped) == len(undisturbed) // 2
    assert [step.num_pairs for step in steps] == [step.num_pairs for step in undisturbed]
    assert [step.epoch for step in steps] == [step.epoch for step in undisturbed]
    assert [step.loss for step in steps] == pytest.approx([step.loss for step in undisturbed], abs=2e-3)
