"""A small tokenizer with the special tokens of several model families, and chat templates in their styles."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEMPLATES = Path(__file__).parent / "templates"
SPECIAL_TOKENS = [
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "<|header_start|>",
    "<|header_end|>",
    "<|eot|>",
    "<|eom|>",
    "<|python_start|>",
    "<|python_end|>",
    "<|im_sep|>",
    "<|im_system|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_middle|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|call|>",
    "<|return|>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜end▁of▁sentence｜>",
    "<|observation|>",
    "[gMASK]",
    "<sop>",
]
TEXTS = [
    "Hello there, how are you?\n\n I am well. The sum is 42!\n\n",
    'user assistant system tool model <think>\nhmm\n</think>\n\n {"name": "add", "arguments": {"a": 1}}',
]


@pytest.fixture(scope="session")
def model() -> Tokenizer:
    """Byte-level BPE whose post-processor adds BOS and trims offsets, and that was left with truncation and padding."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=480,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 2, trainer)
    bos = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), bos])
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=9)
    return tokenizer


@pytest.fixture(scope="session")
def fast(model: Tokenizer) -> PreTrainedTokenizerFast:
    """The same as transformers has it."""
    return PreTrainedTokenizerFast(tokenizer_object=model, bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="session")
def marked() -> Callable[[str], str]:
    """Function: the template of a family, with its `{% generation %}` blocks."""
    return lambda family: (TEMPLATES / f"{family}.jinja").read_text()


@pytest.fixture(scope="session")
def unmarked(marked: Callable[[str], str]) -> Callable[[str], str]:
    """Function: the same without the blocks' tags."""
    return lambda family: re.sub(r"\{% (end)?generation %\}", "", marked(family))


@pytest.fixture(scope="session")
def exact(model: Tokenizer) -> PreTrainedTokenizerFast:
    """The same with white space in the offsets of its tokens, without which transformers ends its masks early."""
    copy = Tokenizer.from_str(model.to_str())
    copy.no_truncation()
    copy.no_padding()
    copy.post_processor = processors.ByteLevel(trim_offsets=False)
    return PreTrainedTokenizerFast(tokenizer_object=copy, bos_token="<s>", eos_token="</s>")
