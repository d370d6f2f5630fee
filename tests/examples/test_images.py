"""examples/images.py: two ranks, a server killed in the middle, then three ranks: every chat and picture once."""

import importlib.util
import json
import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from tests.faulty_server import Faults
from tests.flat_words import prepare

from packhorse.client import Topology, as_token_source, connect

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[2] / "client" / "examples" / "images.py"
NUM_CHATS, RUN_SECONDS = 300, 200
SLOW = Faults(block_bytes=64, block_seconds=0.2)  # the kill finds streams on their way


@pytest.fixture(scope="module")
def images():
    """The example as a module."""
    sys.path.insert(0, str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("images_example", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(SCRIPT.parent))


@pytest.fixture(scope="module")
def folder(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    images.make(folder / "colours", NUM_CHATS)
    prepare(
        folder / "colours" / "chats.idx", output=folder / "root" / "colours", max_seq_len=128, workers=1, progress=False
    )
    return folder


def lines_of(folder):
    files = sorted(folder.iterdir()) if folder.exists() else []
    return Counter(tuple(json.loads(line)) for file in files for line in file.read_text().splitlines())


def test_every_chat_and_picture_is_trained_on_once(images, folder, make_server, wait_until, tmp_path, no_launcher):
    def start(server, processes, *flags):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", processes, "--standalone", SCRIPT]
        command += ["--data", folder / "colours", "--target", server.target, "--dataset", "colours", "--epochs", 1]
        command += ["--checkpoint", "run.pt", "--record", "seen", *flags]
        return subprocess.Popen(
            [*map(str, command)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def losses_of(run):
        output, _ = run.communicate(timeout=RUN_SECONDS)
        assert run.returncode == 0, output
        return [float(loss) for loss in re.findall(r"loss ([0-9.]+)", output)]

    seen, pictures = tmp_path / "seen", tmp_path / "seen-pictures"
    with make_server(folder / "root", faults=SLOW) as server:
        run = start(server, 2, "--stop-after", 12)
        wait_until(lambda: lines_of(seen).total() > 10 or run.poll() is not None, RUN_SECONDS)
        server.kill()
        assert run.poll() is None
        server.start()
        losses = losses_of(run)
        cursor = torch.load(tmp_path / "run.pt", weights_only=True)["cursor"]
        assert (cursor["epoch"], cursor["position"]) == (0, 12 * 2)
        assert 10 < lines_of(seen).total() < NUM_CHATS
        losses += losses_of(start(server, 3))
    assert len(list(seen.iterdir())) == 3
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0] - 1
    tokens = as_token_source(folder / "colours" / "chats.idx")
    assert lines_of(seen) == Counter(tuple(tokens.read(i).tolist()) for i in range(NUM_CHATS))
    load = images.Pictures(folder / "colours")
    expected = Counter()
    for number, messages in enumerate(load.chats):
        if any(part["type"] == "image" for part in messages[0]["content"]):
            batch = {"media": type("", (), {"keys": ["pixel_values"]}), **load.of_chat(number)}
            expected.update((number, int(pixels.sum())) for pixels in images.images_of(batch))
    assert expected.total() > NUM_CHATS / 2
    assert lines_of(pictures) == expected


def test_some_bins_hold_no_image(images, folder):
    """So the run above shows that DDP does not wait for the gradients of a vision tower that a rank did not run."""
    load = images.Pictures(folder / "colours")
    has_image = [any(part["type"] == "image" for part in messages[0]["content"]) for messages in load.chats]
    with connect(f"embedded:{folder / 'root'}") as client, client.stream_bins("colours", topology=Topology()) as stream:
        bins = [block.slice(i, i + 1).ids.tolist() for block in stream for i in range(len(block))]
    assert 3 < sum(not any(has_image[i] for i in ids) for ids in bins) < len(bins) / 2
