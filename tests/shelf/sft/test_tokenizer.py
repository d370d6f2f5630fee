"""Tokenizers from wherever they are: all forms of one give the same, and what cannot work is refused."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from packhorse.sft import encode_chat, load_chat_tokenizer

MESSAGES = [{"role": "user", "content": "Hello é"}, {"role": "assistant", "content": " Good 🐎\n\n"}]


@pytest.fixture
def folder(tmp_path: Path, fast: PreTrainedTokenizerFast, marked: Callable[[str], str]) -> Path:
    """As save_pretrained writes it: a default template and one for tools."""
    fast.chat_template = {"default": marked("llama3"), "tool_use": marked("chatml")}
    fast.save_pretrained(tmp_path / "model")
    fast.chat_template = None
    return tmp_path / "model"


def test_every_form_of_a_tokenizer_gives_the_same(
    folder: Path, model: Tokenizer, unmarked: Callable[[str], str]
) -> None:
    loaded = PreTrainedTokenizerFast.from_pretrained(folder)
    expected = loaded.apply_chat_template(MESSAGES, return_dict=True)["input_ids"]
    for tokenizer in (folder, str(folder), loaded, load_chat_tokenizer(folder)):
        assert encode_chat(MESSAGES, tokenizer).input_ids.tolist() == expected
    options = {"bos_token": "<s>", "eos_token": "</s>"}
    for tokenizer in (folder / "tokenizer.json", model):
        encoded = encode_chat(MESSAGES, tokenizer, chat_template=unmarked("llama3"), template_options=options)
        assert encoded.input_ids.tolist() == expected


def test_the_template_is_the_one_for_tools_or_the_one_chosen(folder: Path, tmp_path: Path) -> None:
    loaded = PreTrainedTokenizerFast.from_pretrained(folder)
    tools = [{"type": "function", "function": {"name": "add"}}]
    for tokenizer in (folder, loaded):
        by_tools = encode_chat(MESSAGES, tokenizer, tools=tools).input_ids.tolist()
        assert by_tools == loaded.apply_chat_template(MESSAGES, tools=tools, return_dict=True)["input_ids"]
        named = encode_chat(MESSAGES, tokenizer, chat_template="tool_use").input_ids.tolist()
        assert named == loaded.apply_chat_template(MESSAGES, chat_template="tool_use", return_dict=True)["input_ids"]
    (tmp_path / "own.jinja").write_text("{{ messages[1].content }}{{ eos_token }}")
    from_file = encode_chat(MESSAGES, folder, chat_template=tmp_path / "own.jinja").input_ids
    assert loaded.decode(from_file) == " Good 🐎\n\n</s>"


def test_settings_may_hold_the_template(folder: Path, marked: Callable[[str], str]) -> None:
    expected = encode_chat(MESSAGES, folder).input_ids.tolist()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "chat_template.jinja").unlink()
    for path in (folder / "additional_chat_templates").iterdir():
        path.unlink()
    for templates in (marked("llama3"), [{"name": "default", "template": marked("llama3")}]):
        config |= {"chat_template": templates, "eos_token": {"content": "</s>"}}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        assert encode_chat(MESSAGES, folder).input_ids.tolist() == expected


def test_a_users_tokenizer_is_left_as_it_is(model: Tokenizer) -> None:
    before = model.to_str()
    tokenizer = load_chat_tokenizer(model)
    assert model.to_str() == before
    assert tokenizer.model.to_str() != before
    assert tokenizer.opening == (model.token_to_id("<s>"),)
    assert tokenizer.closing == ()
    assert load_chat_tokenizer(model) is tokenizer
    pickled = pickle.loads(pickle.dumps(tokenizer))
    assert pickled.encode(["Hello  \n"])[0].offsets == tokenizer.encode(["Hello  \n"])[0].offsets


def test_offsets_leave_out_no_white_space(model: Tokenizer) -> None:
    (encoding,) = load_chat_tokenizer(model).encode(["Hello   \n\n there "])
    assert [begin for begin, _ in encoding.offsets[1:]] == [end for _, end in encoding.offsets[:-1]]


def test_a_tokenizer_that_grows_is_read_anew(model: Tokenizer) -> None:
    copy = Tokenizer.from_str(model.to_str())
    assert len(load_chat_tokenizer(copy).encode(["<new>"])[0].ids) > 1
    copy.add_special_tokens(["<new>"])
    assert load_chat_tokenizer(copy).encode(["<new>"])[0].ids == [copy.token_to_id("<new>")]


def test_the_end_that_a_tokenizer_adds_is_its_own(model: Tokenizer) -> None:
    copy = Tokenizer.from_str(model.to_str())
    eos = copy.token_to_id("</s>")
    copy.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", eos)])
    assert load_chat_tokenizer(copy).eos_id(None) == eos


def test_mistakes_are_named(folder: Path, model: Tokenizer, marked: Callable[[str], str], tmp_path: Path) -> None:
    class Slow:
        apply_chat_template = None

    with pytest.raises(ValueError, match="Slow is a slow tokenizer"):
        encode_chat(MESSAGES, Slow())
    with pytest.raises(ValueError, match="int is not a tokenizer that can be read"):
        encode_chat(MESSAGES, 7)
    with pytest.raises(FileNotFoundError, match=r"none.json is not there"):
        encode_chat(MESSAGES, tmp_path / "none.json")
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json is not there; .*slow"):
        encode_chat(MESSAGES, tmp_path)
    with pytest.raises(ValueError, match=r"writes bos_token, which a tokenizer[.]json alone does not name"):
        encode_chat(MESSAGES, model, chat_template=marked("llama3"))
    with pytest.raises(ValueError, match="no chat template; give one"):
        encode_chat(MESSAGES, folder / "tokenizer.json")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {"9999": {"content": "<added>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"gives '<added>' the id 9999, its tokenizer[.]json None"):
        encode_chat(MESSAGES, folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is not a tokenizer\.json"):
        encode_chat(MESSAGES, folder)
