"""What tests of tokenizing read and write: the texts of the corpus, and the sequences of a Megatron file."""

from pathlib import Path

from packhorse.formats import MegatronTokens

TEXTS = [f"def f{i}(x):\n    return x + {i}  # é ü\n" for i in range(200)]


def sequences(prefix: Path) -> list[list[int]]:
    tokens = MegatronTokens(prefix)
    return [tokens.read(i).tolist() for i in range(len(tokens))]
