"""What tests of training stacks share: a tiny Llama and its tokenizer."""

import gc

import pytest
import torch

VOCAB_SIZE = 64


@pytest.fixture(autouse=True, scope="module")
def _trainers_collect_only_their_own():
    """Trainers collect garbage at each start and end: they need not walk what earlier files of tests left."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_llama():
    """Function: a Llama of two layers with random weights, the same each time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def make(attention="sdpa"):
        torch.manual_seed(5)
        config = LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.2,
            attn_implementation=attention,
        )
        return LlamaForCausalLM(config)

    return make


@pytest.fixture(scope="session")
def tiny_tokenizer():
    """A tokenizer of 64 words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(["<pad>", "<eos>", *(f"w{i}" for i in range(VOCAB_SIZE - 2))])}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<pad>")), eos_token="<eos>", pad_token="<pad>"
    )


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory):
    """(target, token file, sequences): 60 sequences in `small` (bins of 32 tokens), the first 20 in `held-out`."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tests.flat_words import prepare

    from packhorse.formats import MegatronWriter

    folder = tmp_path_factory.mktemp("small")
    random = np.random.default_rng(4)
    sequences = [random.integers(2, VOCAB_SIZE, length) for length in random.integers(1, 30, 60)]
    with MegatronWriter(folder / "tokens", vocab_size=VOCAB_SIZE) as writer:
        for tokens in sequences:
            writer.append(tokens)
    for name, rows in (("small", 60), ("held-out", 20)):
        table = pa.table({"length": [len(sequence) for sequence in sequences[:rows]]})
        pq.write_table(table, folder / f"{name}.parquet")
        prepare(
            folder / f"{name}.parquet",
            length_column="length",
            output=folder / "root" / name,
            max_seq_len=32,
            progress=False,
        )
    return f"embedded:{folder / 'root'}", folder / "tokens", [sequence.tolist() for sequence in sequences]
