"""Texts that spell special tokens, have their own BOS and EOS, or hold characters that a tokenizer does not know."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.flat_words import tokenize
from tests.shelf.tokenize.made import sequences
from tests.shelf.tokenize.small_tokenizers import byte_level, saved, sentence_piece
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer

from packhorse.sft import encode_chat, encode_prompt_response, load_chat_tokenizer
from packhorse.tokenize import SpecialTokens
from packhorse.tokenize.commands.tokenize import command

FORMS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "metaspace": partial(sentence_piece, "metaspace"),
    "prepend": partial(sentence_piece, "prepend"),
}
TEXTS = ["The fox.", " two  blanks ", "see <|eot|> here", "\nThe fox\n", "2 + 2 = 4", "é🐎", "a</s>b"]


def _corpus(folder: Path, texts: list[str]) -> Path:
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def _ids(tokenizer: Path, text: str, **options: Any) -> list[int]:
    ids: list[int] = AutoTokenizer.from_pretrained(tokenizer)(text, **options)["input_ids"]
    return ids


@pytest.mark.parametrize("form", FORMS)
def test_tokens_are_those_of_transformers(tmp_path: Path, form: str) -> None:
    folder = saved(FORMS[form](), tmp_path / "tok")
    corpus = _corpus(tmp_path, TEXTS)
    for treatment, splits in (("keep", False), ("text", True)):
        special = {"append_eos": False, "special_in_text": treatment}
        summary = tokenize(corpus, tmp_path / treatment, tokenizer=folder, **special)
        expected = [_ids(folder, text, split_special_tokens=splits) for text in TEXTS]
        assert sequences(tmp_path / treatment) == expected
        assert summary.special_in_text == {"<|eot|>": 1, "</s>": 1}
        assert summary.special_kept == (2 if treatment == "keep" else 0)
    eot = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("<|eot|>")
    assert eot in sequences(tmp_path / "keep")[2]
    assert eot not in sequences(tmp_path / "text")[2]


@pytest.mark.parametrize("treatment", ["text", "keep"])
def test_a_begin_and_an_end_that_are_there_are_not_doubled(tmp_path: Path, treatment: Any) -> None:
    folder = saved(byte_level(), tmp_path / "tok")
    texts = ["<s>The fox.</s>", "The fox.", "<s>The fox.", "The fox.</s>", "<s></s>"]
    special = SpecialTokens(special_in_text=treatment)
    summary = tokenize(_corpus(tmp_path, texts), tmp_path / "x", tokenizer=folder, special=special)
    once = [*_ids(folder, "The fox."), AutoTokenizer.from_pretrained(folder).eos_token_id]
    assert sequences(tmp_path / "x")[:4] == [once] * 4
    assert summary.own_ends >= 4
    assert summary.special_in_text == {}
    # As an option, too: a BOS that the tokenizer does not add by itself.
    plain = byte_level()
    plain.post_processor = None
    other = saved(plain, tmp_path / "plain")
    special = SpecialTokens(bos="<s>", special_in_text=treatment)
    tokenize(_corpus(tmp_path, texts[:4]), tmp_path / "y", tokenizer=other, special=special)
    assert sequences(tmp_path / "y") == [once] * 4


def test_a_line_that_spells_a_special_token_leaves_the_other_lines_of_a_folder_s_file(tmp_path: Path) -> None:
    folder = saved(byte_level(), tmp_path / "tok")
    (tmp_path / "texts").mkdir()
    lines = tmp_path / "texts" / "lines.txt"
    lines.write_text("The fox.\nsee <|eot|> here\n2 + 2 = 4\n")
    for source, output in ((lines, "of-file"), (lines.parent, "of-folder")):
        summary = tokenize(
            source,
            tmp_path / output,
            tokenizer=folder,
            documents="line",
            on_bad_row="skip",
            special_in_text="error",
        )
        assert (summary.documents, summary.skipped_bad) == (2, 1)


def test_special_tokens_in_text_are_printed_or_refused(tmp_path: Path) -> None:
    folder = saved(byte_level(), tmp_path / "tok")
    flags = ["--input", str(_corpus(tmp_path, TEXTS)), "--tokenizer", str(folder), "--output", str(tmp_path / "x")]
    told = CliRunner().invoke(command, flags)
    assert told.exit_code == 0, told.output
    assert "special tokens in text  2 (</s> 1, <|eot|> 1); written as text" in " ".join(told.output.split(" "))
    with pytest.raises(ValueError, match=r"line 3 spells .*'<\|eot\|>'.*Bad rows too: .*line 7 spells .*'</s>'"):
        tokenize(
            tmp_path / "corpus.jsonl",
            tmp_path / "y",
            tokenizer=folder,
            special=SpecialTokens(special_in_text="error"),
        )
    flags = [*flags[:-1], str(tmp_path / "z"), "--special-in-text", "error", "--on-bad-row", "skip", "--json"]
    facts = json.loads(CliRunner().invoke(command, flags).output)
    assert (facts["documents"], facts["skipped_bad"]) == (5, 2)


def test_a_word_that_is_a_special_token_is_counted_as_one(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "<x>": 2, "</s>": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(["<x>", "</s>"])
    folder = saved(words, tmp_path / "tok")
    summary = tokenize(_corpus(tmp_path, ["a <x> b"]), tmp_path / "x", tokenizer=folder)
    assert sequences(tmp_path / "x") == [[1, 2, 0, 3]]
    assert (summary.special_in_text, summary.special_kept, summary.unknown_characters) == ({"<x>": 1}, 1, 1)


def test_dropped_characters_are_counted(tmp_path: Path) -> None:
    model = Tokenizer(models.BPE({"a": 0, "b": 1, "</s>": 2}, []))
    model.add_special_tokens(["</s>"])
    summary = tokenize(
        _corpus(tmp_path, ["aéb", "ab", "ü a"]), tmp_path / "x", tokenizer=saved(model, tmp_path / "tok")
    )
    assert sequences(tmp_path / "x") == [[0, 1, 2], [0, 1, 2], [0, 2]]
    assert summary.unknown_characters == 2


@pytest.mark.parametrize("is_special", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_tokens_that_only_the_settings_name_are_those_of_transformers(
    tmp_path: Path, form: str, is_special: bool
) -> None:
    model = FORMS[form]()
    number = model.get_vocab_size()
    added = {str(number): {"content": "<new>", "special": is_special, "normalized": False}}
    folder = saved(model, tmp_path / "tok", added_tokens_decoder=added)
    text = "The <new> fox"
    special = SpecialTokens(append_eos=False, special_in_text="keep")
    summary = tokenize(_corpus(tmp_path, [text]), tmp_path / "x", tokenizer=folder, special=special)
    assert sequences(tmp_path / "x") == [_ids(folder, text)]
    assert number in sequences(tmp_path / "x")[0]
    assert summary.vocab_size == number + 1
    # The tokenizer beside the output needs no settings for it.
    again = tokenize(_corpus(tmp_path, [text]), tmp_path / "y", tokenizer=summary.tokenizer_path, special=special)
    assert sequences(tmp_path / "y") == sequences(tmp_path / "x")
    assert again.vocab_size == summary.vocab_size
    encoded = encode_prompt_response(text, "fox", folder, eos=False)
    assert encoded.input_ids.tolist()[: len(_ids(folder, text))] == _ids(folder, text)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "</s>", "added_tokens_decoder": {"9999": {"content": "<new>"}}})
    )
    with pytest.raises(ValueError, match=r"gives '<new>' the id 9999, its tokenizer[.]json None"):
        tokenize(_corpus(tmp_path, [text]), tmp_path / "z", tokenizer=folder)


@pytest.mark.parametrize(
    ("form", "kind", "wanted"),
    [
        ("byte-level", "GPT2TokenizerFast", True),
        ("byte-level", "GPT2TokenizerFast", False),
        ("byte-level", "PreTrainedTokenizerFast", True),
        ("metaspace", "LlamaTokenizerFast", False),
        ("metaspace", "LlamaTokenizerFast", True),
        ("prepend", "LlamaTokenizerFast", False),
    ],
)
def test_a_prefix_space_of_the_settings_is_that_of_transformers(
    tmp_path: Path, form: str, kind: str, wanted: bool
) -> None:
    folder = saved(FORMS[form](), tmp_path / "tok", tokenizer_class=kind, add_prefix_space=wanted)
    texts = ["The fox", " The fox", "2 + 2 = 4"]
    special = SpecialTokens(append_eos=False)
    tokenize(_corpus(tmp_path, texts), tmp_path / "x", tokenizer=folder, special=special)
    assert sequences(tmp_path / "x") == [_ids(folder, text) for text in texts]


@pytest.mark.parametrize("form", ["metaspace", "prepend"])
@pytest.mark.parametrize("settings", [{}, {"legacy": True}, {"add_prefix_space": True}, {"add_prefix_space": False}])
def test_blanks_after_special_tokens_are_those_of_the_llama_class(
    tmp_path: Path, form: str, settings: dict[str, Any]
) -> None:
    folder = saved(FORMS[form](), tmp_path / "tok", tokenizer_class="LlamaTokenizer", **settings)
    loaded, own = AutoTokenizer.from_pretrained(folder), load_chat_tokenizer(folder)
    for text in ("<s>The fox</s>The fox", " The fox", "</s> the  lazy\n dog <|eot|>\nasks"):
        (encoding,) = own.encode([text])
        assert encoding.ids == loaded(text, add_special_tokens=False)["input_ids"], text


@pytest.mark.parametrize("form", FORMS)
def test_a_response_gets_no_blank_of_its_own(tmp_path: Path, form: str) -> None:
    folder = saved(FORMS[form](), tmp_path / "tok")
    loaded = AutoTokenizer.from_pretrained(folder)
    for prompt, response in (("2 + 2 = ", "4"), ("2 + 2 =", "4"), ("2 + 2 =", " 4"), ("see", " the fox\n")):
        encoded = encode_prompt_response(prompt, response, folder)
        blank = "" if form == "byte-level" else " "
        decoded = loaded.decode(encoded.input_ids, clean_up_tokenization_spaces=False)
        assert decoded == f"<s>{blank}{prompt}{response}</s>"
        own = _ids(folder, prompt)
        assert encoded.input_ids.tolist()[: len(own)] == own
        assert encoded.loss_mask.tolist() == [False] * len(own) + [True] * (len(encoded.input_ids) - len(own))
    if form == "byte-level":  # others merge across the boundary, where the model answers after the prompt's own tokens
        whole = _ids(folder, "2 + 2 = 4")
        assert encode_prompt_response("2 + 2 =", " 4", folder, eos=False).input_ids.tolist() == whole
    doubled = encode_prompt_response("<s>2 + 2 =", " 4</s>", folder)
    ends = [loaded.bos_token_id, loaded.eos_token_id]
    assert [doubled.input_ids.tolist().count(number) for number in ends] == [1, 1]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_are_named(tmp_path: Path, encoding: str) -> None:
    folder = saved(byte_level(), tmp_path / "tok")
    content = '{"text": "The fox"}\n{"text": "x"}\n'.encode(encoding)
    name = "UTF-32" if encoding == "utf-32" else "UTF-16"
    for suffix in (".jsonl", ".json"):
        path = tmp_path / f"x{suffix}"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"x\{suffix} is {name}, not UTF-8; .*iconv -f {name}"):
            tokenize(path, tmp_path / "x", tokenizer=folder)
    if not encoding.endswith(("le", "be")):
        (tmp_path / "x.txt").write_bytes("The fox\nand more".encode(encoding))
        for split in ("file", "line"):
            with pytest.raises(ValueError, match=rf"1 undecodable .*x\.txt \({name}\)"):
                tokenize(tmp_path / "x.txt", tmp_path / "x", tokenizer=folder, documents=split)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "a <|eot|>"}, {"role": "assistant", "content": "see </s> <|eot|>"}]},
        {"prompt": "a <|eot|>", "completion": "see </s> <|eot|>"},
    ],
)
def test_special_tokens_in_rows_are_counted_or_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }}</s>{% endfor %}"
    folder = saved(byte_level(), tmp_path / "tok", chat_template=template)
    (tmp_path / "c.jsonl").write_text(json.dumps(row))
    flags = ["--input", str(tmp_path / "c.jsonl"), "--tokenizer", str(folder), "--output", str(tmp_path / "x")]
    told = CliRunner().invoke(command, [*flags, "--json"])
    assert json.loads(told.stdout)["special_in_text"] == {"<|eot|>": 2, "</s>": 1}
    told = CliRunner().invoke(command, [*flags, "--overwrite"])
    assert "3 (<|eot|> 2, </s> 1); all became tokens" in told.output
    told = CliRunner().invoke(command, [*flags, "--overwrite", "--special-in-text", "error"])
    assert "line 1: the row spells the special token '<|eot|>'" in str(told.exception)
    told = CliRunner().invoke(command, [*flags, "--overwrite", "--special-in-text", "text"])
    assert (told.exit_code, "is for plain text" in told.output) == (2, True)


def _of_few_letters(folder: Path, unknown: str | None) -> Path:
    model = Tokenizer(models.BPE({letter: number for number, letter in enumerate("ab :?.")}, [], unk_token=unknown))
    template = "{% for m in messages %}{{ 'a:' if m.role == 'user' else 'b:' }}{{ m.content }} {% endfor %}"
    return saved(model, folder, chat_template=template, bos_token=None, eos_token=".")


@pytest.mark.parametrize("unknown", [None, "?"])
def test_unknown_characters_of_rows_are_counted(tmp_path: Path, unknown: str | None) -> None:
    folder = _of_few_letters(tmp_path / "tok", unknown)
    (tmp_path / "c.jsonl").write_text(json.dumps({"prompt": "aß", "completion": "b ä"}))
    flags = ["--input", str(tmp_path / "c.jsonl"), "--tokenizer", str(folder), "--output", str(tmp_path / "x")]
    told = CliRunner().invoke(command, [*flags, "--json"])
    assert json.loads(told.stdout)["unknown_characters"] == 2
    assert "2, which the tokenizer does not know" in CliRunner().invoke(command, [*flags, "--overwrite"]).output


def test_a_chat_with_a_character_that_leaves_no_token_is_refused(tmp_path: Path) -> None:
    """The library's offsets are wrong after it, so the mask would be."""
    chat = [{"role": "user", "content": "ä"}, {"role": "assistant", "content": "bb"}]
    with pytest.raises(ValueError, match="does not know 'ä' and leaves them out, so that nothing says where"):
        encode_chat(chat, _of_few_letters(tmp_path / "tok", None))
    encoded = encode_chat(chat, _of_few_letters(tmp_path / "unk", "?"))
    assert encoded.loss_mask.tolist() == [False] * 6 + [True] * 3
