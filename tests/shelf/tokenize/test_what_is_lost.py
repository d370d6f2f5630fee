"""Each line of the guide's tables of losses, run as a user would: the row goes in, and the sentence comes out."""

import json
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer, models, pre_tokenizers

from packhorse.sft.forms.sharegpt import _ROLES
from packhorse.sft.messages import FLAGS, REASONING
from packhorse.sft.unused import _WIRING
from packhorse.tokenize.commands.tokenize import command
from packhorse.tokenize.encoding.row_encoder import _STANDARD, _VERDICTS

GUIDE = Path(__file__).parents[3] / "client" / "guides" / "what-tokenizing-leaves-out.md"
TEMPLATE = (
    "{% for m in messages %}{% if m.role in ('user', 'assistant', 'system', 'tool') %}{{ m.role + ' ' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ ' ' + c.function.name + ' ' + (c.function.arguments | tojson) }}{% endfor %}"
    "{{ ' <end> ' }}{% endif %}{% endfor %}"
)
_LINE = re.compile(r"^\| (answer )?`(.*?)`(?: with `(.*?)`)? \| `(.*)` \|$")


class Loss(NamedTuple):
    """A line of a table."""

    row: dict[str, Any]
    flags: tuple[str, ...]
    said: str


def losses() -> dict[str, Loss]:
    """The lines of the guide, by their first cell."""
    found = {}
    for line in GUIDE.read_text().splitlines():
        if not line.startswith("|") or line.startswith(("|---", "| a row holds")):
            continue
        match = _LINE.match(line)
        assert match is not None, f"the line has another form: {line}"
        of_answer, shown, flags, said = match.groups()
        row, own = json.loads(shown), ("messages", "prompt", "instruction", "chosen")
        if of_answer or not set(row) & set(own):
            answer = {"role": "assistant", "content": "b"} | (row if of_answer else {})
            row = {"messages": [{"role": "user", "content": "a"}, answer]} | ({} if of_answer else row)
        found[line.split(" | ")[0].removeprefix("| ")] = Loss(row, tuple(shlex.split(flags or "")), said)
    return found


LOSSES = losses()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ("?", "user", "assistant", "system", "tool", "<end>", "a", "b")
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<end>"])
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "endless.jinja").write_text(TEMPLATE.replace("<end>", "."))
    return folder


def test_the_guide_to_fine_tuning_names_every_field() -> None:
    shown = (GUIDE.parent / "supervised-fine-tuning.md").read_text().split("## Fields")[1].split("\n## ")[0]
    columns, messages = (set(re.findall(r"`(\w+)`", table)) for table in shown.split("| in a message"))
    assert columns >= {
        *_STANDARD,
        *_VERDICTS,
        *("messages", "conversations", "chosen", "rejected", "prompt", "completion"),
    }
    assert messages >= {*FLAGS, *REASONING, *_ROLES, *_WIRING, "tool_calls"}


def test_the_table_has_sixty_rows() -> None:
    assert len(LOSSES) >= 60


@pytest.mark.parametrize("shown", LOSSES)
def test_what_is_lost_is_said(model: Path, tmp_path: Path, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model)
    loss = LOSSES[shown]
    (tmp_path / "rows.jsonl").write_text(json.dumps(loss.row))
    flags = ["--input", str(tmp_path / "rows.jsonl"), "--tokenizer", ".", "--output", str(tmp_path / "x"), *loss.flags]
    told = CliRunner().invoke(command, flags)
    assert told.exit_code == 0 or isinstance(told.exception, ValueError | SystemExit), told.output
    printed = told.output + str(told.exception or "")
    assert loss.said in printed
    if loss.said.startswith("not used "):
        assert told.exit_code == 0, printed
        (name,) = re.findall(r"not used   ([^,\n]+)", printed)  # that, and nothing else
        assert json.loads((tmp_path / "x.unused.json").read_text())["unused"][name]["rows"] == 1
        if "--cutoff-len" in loss.flags:
            return  # whoever asks for a cut has allowed it
        strict = CliRunner().invoke(command, [*flags, "--overwrite", "--strict"])
        assert f"{name} would not be in the tokens" in str(strict.exception)
        ignored = CliRunner().invoke(command, [*flags, "--overwrite", "--strict", "--ignore", name])
        assert ignored.exit_code == 0, ignored.output
