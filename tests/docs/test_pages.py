"""Every block of code on every page does what it is there for: it runs, or at least it parses.

A page runs in a folder of its own. Pages that tokenize (`--tokenizer`) begin with raw text alone: `corpus.jsonl`,
`validation.jsonl`, `chats.jsonl`, `preferences.jsonl`, and `my-model`, a tiny model of transformers with its tokenizer.
On the others `corpus.idx`, `corpus.parquet`, `validation.idx`, `validation.parquet` and the datasets prepared from
them, in `datasets`, stand there too. Where a page starts no server, one for these datasets stands at the address that
the page speaks of.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pages import PAGES, ROOT, blocks_of
from run_pages import Request, is_serving, line_of, wait_until_healthy
from tests.servers import free_port

PAGE_SECONDS = 240
CODE_COLUMNS = 88
"""What a page of the site shows of a line of code on a laptop without scrolling."""
GENERATED = (
    "MAP.md",
    *(
        f"client/guides/reference-{name}.md"
        for name in ("client", "commands", "environment", "errors", "library", "metrics")
    ),
)
"""Pages whose lines are those of the code that they are made from."""
GUIDES = ("client/guides/", "deploy/guides/", "README.md", "deploy/README.md", "client/examples/README.md")
FOLLOWED_FIRST = ("README.md",)
PORTS = ("50051", "50052", "9464")
WORDS = "a cart waits for the long one while horses carry many small loads on one road to be full".split()  # noqa: SIM905
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<eos>{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
)


def sentences(number: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    lengths = np.clip(random.lognormal(3, 0.8, number).astype(int), 2, 120)
    return [" ".join(random.choice(WORDS, length)) for length in lengths]


def save_model(folder: Path) -> None:
    """A tiny Llama, a tokenizer of words and its chat template."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Sequence as Steps
    from tokenizers.pre_tokenizers import Split, WhitespaceSplit
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ["<pad>", "<eos>", "<|user|>", "<|assistant|>", "<|system|>"]
    words = {word: i for i, word in enumerate([*special, *sorted(set(WORDS))])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = Steps([WhitespaceSplit(), Split("<eos>", "isolated")])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", additional_special_tokens=special[2:]
    )
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


@pytest.fixture(scope="session")
def raw_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    save_model(folder / "my-model")
    prompts, answers, worse = sentences(120, 1), sentences(120, 2), sentences(120, 3)
    rows = {
        "corpus": [{"text": text, "url": f"https://example.org/{i}"} for i, text in enumerate(sentences(300, 0))],
        "validation": [{"text": text} for text in sentences(60, 4)],
        "chats": [
            {"messages": [{"role": "user", "content": p}, {"role": "assistant", "content": a}]}
            for p, a in zip(prompts, answers, strict=True)
        ],
        "preferences": [
            {"prompt": p, "chosen": a, "rejected": w} for p, a, w in zip(prompts, answers, worse, strict=True)
        ],
    }
    for name, lines in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="session")
def prepared_folder(raw_folder, tmp_path_factory):
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tests.flat_words import prepare

    from packhorse.formats import MegatronWriter

    folder = tmp_path_factory.mktemp("prepared") / "folder"
    shutil.copytree(raw_folder, folder)
    for name, number, seed in (("corpus", 300, 0), ("validation", 60, 9)):
        random = np.random.default_rng(seed)
        lengths = np.clip(random.lognormal(3, 0.8, number).astype(int), 2, 120)
        sequences = [random.integers(5, 20, length) for length in lengths]
        with MegatronWriter(folder / name, vocab_size=64) as writer:
            for tokens in sequences:
                writer.append(tokens)
        columns = {"id": np.arange(number) + 1000, "url": [f"https://example.org/{i}" for i in range(number)]}
        pq.write_table(pa.table({**columns, "tokens": sequences}), folder / f"{name}.parquet")
        prepare(folder / f"{name}.idx", output=folder / "datasets" / name, max_seq_len=128, progress=False)
    return folder


@pytest.fixture(scope="session")
def shared_port(prepared_folder, make_server):
    """Of the server for pages that start none."""
    with make_server(prepared_folder / "datasets") as server:
        wait_until_healthy(server.target)
        yield int(server.target.rpartition(":")[2])


@pytest.fixture(scope="session")
def page_runner():
    """Function: runs a page, and returns its exit status."""
    script = ROOT / "tests" / "docs" / "run_pages.py"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for name in ("RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
    ) as runner:

        def run(request):
            runner.stdin.write(line_of(request))
            runner.stdin.flush()
            return int(runner.stdout.readline())

        yield run
        runner.stdin.close()


@pytest.fixture
def commands(tmp_path):
    """A folder with `packhorse` and `python` of this interpreter."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, command in (("packhorse", f"{sys.executable} -m packhorse.cli"), ("python", sys.executable)):
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def pages_to_run() -> Iterator[Any]:
    """Pages with blocks that are run; all but the first that a user follows take long together."""
    for page in PAGES:
        if any(not block.not_run for block in blocks_of(page)):
            yield pytest.param(page, marks=() if page in FOLLOWED_FIRST else pytest.mark.long)


@pytest.mark.timeout(PAGE_SECONDS)
@pytest.mark.parametrize("page", list(pages_to_run()))
def test_blocks_of_a_page_run(page, page_runner, raw_folder, prepared_folder, request, tmp_path, commands):
    blocks = [block for block in blocks_of(page) if not block.not_run]
    folder = tmp_path / "page"
    begins_raw = any("--tokenizer" in block.code for block in blocks)
    shutil.copytree(raw_folder if begins_raw else prepared_folder, folder)
    ports = {port: free_port() for port in PORTS}
    if not is_serving(page) and any("50051" in block.code for block in blocks):
        ports["50051"] = request.getfixturevalue("shared_port")
    log = tmp_path / "log.txt"
    status = page_runner(Request(page=page, folder=str(folder), log=str(log), ports=ports, commands=str(commands)))
    assert status == 0, log.read_text(errors="replace")[-6000:]


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_a_page_parse(page):
    for block in blocks_of(page):
        where = f"{page}:{block.line}"
        if block.language == "python":
            ast.parse(block.code, where)
        elif block.language == "bash":
            subprocess.run(["bash", "-n", "-c", block.code], check=True)
        elif block.language == "yaml":
            list(yaml.safe_load_all(block.code))
        elif block.language == "json":
            json.loads(block.code)
        elif block.language == "toml":
            tomllib.loads(block.code)
        elif block.language == "diff":
            assert page == "CONTRIBUTING.md", f"{where}: only the walk's lines are applied, by test_walk.py"
        else:
            assert block.language in {"text", "jinja", "promql", "javascript"}, (
                f"{where}: a block says what language it is in"
            )


def test_what_is_not_run_says_why():
    reasons = [block.not_run for page in PAGES for block in blocks_of(page) if block.not_run]
    assert all(re.match(r"\w+ ", reason) for reason in reasons)


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith(GUIDES) and page not in GENERATED])
def test_lines_of_code_fit_the_page(page):
    long = [
        f"{page}:{block.line + i}: {len(line)} characters: {line}"
        for block in blocks_of(page)
        for i, line in enumerate(block.code.splitlines())
        if len(line) > CODE_COLUMNS
    ]
    assert not long, "\n".join(long)


def test_generated_pages_are_named():
    assert set(GENERATED) <= set(PAGES)
