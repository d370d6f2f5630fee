"""Runs the code of pages: one process, forked from this one, for each page that a line on stdin asks for.

This process imports torch and transformers once. It answers each line, a JSON object of `Request`'s fields, with the
page's exit status. Python blocks of a page share their names and run in order with its shell blocks, in the page's own
folder. A page may speak of `model` and `optimizer` without having made them: they are a tiny model of transformers, and
its AdamW.
"""

import json
import os
import re
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

from pages import ROOT, Block, blocks_of

SERVE_SECONDS = 100
_SERVE = re.compile(r"^packhorse serve .*$", re.MULTILINE)


@dataclass(frozen=True)
class Request:
    """What is to be run, and where."""

    page: str
    folder: str
    log: str
    ports: dict[str, int]
    """The port that stands in the page → the port that it gets here."""
    commands: str
    """Folder of `packhorse` and `python`, which comes first in PATH."""


def with_ports(code: str, ports: dict[str, int]) -> str:
    for port, here in ports.items():
        code = re.sub(rf"(?<=:){port}\b", str(here), code)
    return code


def joined_lines(code: str) -> str:
    """Shell code without continued lines."""
    return re.sub(r"\\\n\s*", " ", code)


def is_serving(page: str) -> bool:
    """Whether the page starts a server itself."""
    blocks = [b for b in blocks_of(page) if b.language == "bash" and not b.not_run]
    return any(_SERVE.search(joined_lines(b.code)) for b in blocks)


def wait_until_healthy(target: str) -> None:
    """Waits for the kernels, which the first server of a checkout compiles."""
    command = [sys.executable, "-m", "packhorse.cli", "doctor", "--health", "--target", target]
    deadline = time.monotonic() + SERVE_SECONDS
    while subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode:
        if time.monotonic() > deadline:
            raise SystemExit(f"the server at {target} is not healthy after {SERVE_SECONDS} s")


class PageRun:
    """One page, from its first block to its last."""

    def __init__(self, page: str) -> None:
        self.page = page
        self.servers: list[subprocess.Popen[bytes]] = []
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def run(self, blocks: list[Block], ports: dict[str, int]) -> None:
        python = "".join(b.code for b in blocks if b.language == "python")
        self._give(python)
        try:
            for block in blocks:
                code = with_ports(block.code, ports)
                print(f"--- {self.page}:{block.line} ({block.language})", flush=True)
                if block.language == "python":
                    exec(compile("\n" * (block.line - 1) + code, self.page, "exec"), self.names)
                elif block.language == "bash":
                    self._shell(joined_lines(code))
        finally:
            for server in self.servers:
                server.kill()

    def _give(self, python: str) -> None:
        if not re.search(r"\bmodel\b", python) or re.search(r"^ *model = ", python, re.MULTILINE):
            return
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained("my-model")
        self.names |= {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3)}

    def _shell(self, code: str) -> None:
        """Runs a block line by line as bash does, but servers beside it."""
        commands = _SERVE.split(code)
        for i, command in enumerate(commands):
            subprocess.run(["bash", "-euo", "pipefail", "-c", command], check=True)
            if i + 1 < len(commands):
                self._serve(_SERVE.findall(code)[i])

    def _serve(self, command: str) -> None:
        log = Path(f"serve-{len(self.servers)}.log")
        with log.open("wb") as output:
            server = subprocess.Popen(["bash", "-c", f"exec {command.rstrip(' &')}"], stdout=output, stderr=output)
        self.servers.append(server)
        deadline = time.monotonic() + SERVE_SECONDS
        while "listening on" not in log.read_text() and server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        print(log.read_text(), flush=True)
        if "listening on" not in log.read_text():
            raise SystemExit(f"{command} does not listen")
        wait_until_healthy(log.read_text().split("listening on ")[1].split()[0])


def run(request: Request) -> None:
    log = os.open(request.log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(request.folder)
    os.environ["EXAMPLES"] = str(ROOT / "client" / "examples")
    os.environ["PATH"] = f"{request.commands}:{os.environ['PATH']}"
    blocks = [block for block in blocks_of(request.page) if not block.not_run]
    PageRun(request.page).run(blocks, request.ports)


def main() -> None:
    """Answers until stdin ends."""
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: F401 (what forks need)

    from packhorse.client.loading import loader  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run(Request(**json.loads(line)))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def line_of(request: Request) -> str:
    return json.dumps(asdict(request)) + "\n"


if __name__ == "__main__":
    main()
