"""Runs in another environment: the README's blocks, every JSON output, and every packer. Prints nothing of its own.

`test_environments.py` starts it there, in a folder where `corpus.jsonl` and `my-model` stand.
"""

import json
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "docs"))

import run_pages  # noqa: E402
from pages import blocks_of  # noqa: E402

PORT = int(sys.argv[1])
run_pages.SERVE_SECONDS = 400  # kernels are compiled first, maybe on a busy machine
JSON_OUTPUTS = (
    "inspect datasets/corpus --json",
    "verify datasets/corpus --tokens datasets/corpus/tokens/corpus.idx --json",
    "plan compare datasets/corpus --json",
    f"inspect --target 127.0.0.1:{PORT} --json",
    f"show corpus --target 127.0.0.1:{PORT} --id 3 --json",
    "show datasets/corpus --json",
    f"show corpus --target 127.0.0.1:{PORT} --step 1 --tokens datasets/corpus/tokens/corpus.idx --json",
    f"top --target 127.0.0.1:{PORT} --once --json",
)


class Model(torch.nn.Module):
    """What the README calls `model`, of two layers."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(1000, 8)
        self.head = torch.nn.Linear(8, 1000)

    def forward(self, input_ids, position_ids, labels, use_cache):
        logits = self.head(self.embedding(input_ids) + position_ids[..., None] / 1000)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return type("Output", (), {"loss": loss})


class Readme(run_pages.PageRun):
    """The README, whose shell blocks are followed by what else is asked for while its server runs."""

    def _give(self, python):
        self.names |= {"model": Model()}

    def _shell(self, code):
        super()._shell(code)
        if self.servers:
            for command in JSON_OUTPUTS:
                done = subprocess.run(["packhorse", *command.split()], capture_output=True, text=True, check=False)
                if done.returncode:
                    raise SystemExit(f"{command}: {done.stderr}")
                try:
                    for document in [done.stdout] if done.stdout.startswith(("{\n", "[")) else done.stdout.splitlines():
                        json.loads(document)
                except ValueError:
                    raise SystemExit(f"{command} prints no JSON: {done.stdout[:400]}") from None


def plan_with_every_packer():
    from packhorse.packing import PACKERS, pack_histogram

    counts = {length: 3 + length % 7 for length in range(1, 300, 3)}
    for algorithm in PACKERS:
        plan = pack_histogram(counts, 512, algorithm=algorithm)
        assert sum(times * len(template) for template, times in plan.templates.items()) == sum(counts.values())


if __name__ == "__main__":
    Readme("README.md").run([b for b in blocks_of("README.md") if not b.not_run], {"50051": PORT})
    plan_with_every_packer()
