"""Faults planted into a copy of the tree, one at a time: the tests of the nearest folder notice each.

Owns the list of faults. A fault that only an integration test notices is one that the next person looks for all day; so
each entry names the folder whose tests must fail. Faults are in arithmetic that decides which token a rank trains on.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECONDS = 280


@dataclass(frozen=True)
class Fault:
    """One change of one line, and the tests that fail with it."""

    name: str
    file: str
    right: str
    """Stands in the file exactly once."""
    wrong: str
    tests: str
    """A file of the nearest folder of tests."""


FAULTS = (
    Fault(
        "order of templates",
        "server/packhorse/packing/plan.py",
        "return sorted(templates.items(), reverse=True)",
        "return sorted(templates.items())",
        "tests/packing/test_best_fit.py",
    ),
    Fault(
        "split tree: the cell after an offset",
        "server/packhorse/epoch/sources/_split.py",
        "num_lesser += stratum + (item < offset)",
        "num_lesser += stratum + (item <= offset)",
        "tests/epoch/sources/test_mixture.py",
    ),
    Fault(
        "split tree: a debt that is forgotten",
        "server/packhorse/epoch/sources/_split.py",
        "debt = owed * whole // owed_of",
        "debt = 0 * owed_of",
        "tests/epoch/sources/test_mixture_appended.py",
    ),
    Fault(
        "dealing of a remainder: the half that moves",
        "server/packhorse/packing/split.py",
        "starts[added], sizes[added], tokens[added] = start + num_kept, num_moved, moved_tokens",
        "starts[added], sizes[added], tokens[added] = start + num_kept - 1, num_moved, moved_tokens",
        "tests/packing/test_split.py",
    ),
    Fault(
        "dealing of a remainder: whose bin a sequence is in",
        "server/packhorse/epoch/_last_step.py",
        'new_offsets = np.searchsorted(self.bins.bin_ends, sequences, side="right")',
        'new_offsets = np.searchsorted(self.bins.bin_ends, sequences, side="left")',
        "tests/epoch/test_assignment.py",
    ),
    Fault(
        "REPEAT: which bins come again",
        "server/packhorse/epoch/_last_step.py",
        "added = source.bins(np.arange(num_added) % source.num_bins)",
        "added = source.bins(np.arange(1, num_added + 1) % source.num_bins)",
        "tests/epoch/test_assignment.py",
    ),
    Fault(
        "cursor: batches after what the workers recorded",
        "client/packhorse/client/streams/cursor.py",
        'position = last["position"] + optimizer_steps * topology.bins_per_optimizer_step',
        'position = last["position"] + optimizer_steps * topology.bins_per_step',
        "tests/client/streams/test_cursor.py",
    ),
    Fault(
        "cursor: steps of an unfinished optimizer step",
        "client/packhorse/client/streams/cursor.py",
        'done = last.get("steps_into_optimizer_step", 0) + num_batches_since',
        "done = num_batches_since",
        "tests/client/streams/test_cursor.py",
    ),
    Fault(
        "wire: templates that a message defines for itself",
        "client/packhorse/client/streams/_templates.py",
        "begins[num_kept:] - end_kept, sizes[num_kept:]",
        "begins[num_kept:], sizes[num_kept:]",
        "tests/client/streams/test_blocks.py",
    ),
    Fault(
        "cap: a bin with exactly enough room",
        "server/packhorse/packing/budgets/vectors.py",
        "has_room = (self._rooms[:num_groups] >= size).all(axis=1) & (self._num_bins[:num_groups] > 0)",
        "has_room = (self._rooms[:num_groups] > size).all(axis=1) & (self._num_bins[:num_groups] > 0)",
        "tests/packing/test_vectors.py",
    ),
    Fault(
        "cap: a bin without room for the second budget",
        "server/packhorse/packing/budgets/vectors.py",
        "copies = min(count, int((room[size > 0] // size[size > 0]).min()))",
        "copies = min(count, int(room[0] // size[0]))",
        "tests/packing/test_vectors.py",
    ),
    Fault(
        "redaction: from which position",
        "server/packhorse/dataset/files/open_takedown.py",
        "applies &= positions >= redaction.from_position - epoch * num_bins",
        "applies &= positions > redaction.from_position - epoch * num_bins",
        "tests/dataset/test_takedown.py",
    ),
    Fault(
        "redaction: positions behind a skip",
        "server/packhorse/dataset/files/open_takedown.py",
        "whole[positions >= gap] += end - first",
        "whole[positions > gap] += end - first",
        "tests/dataset/test_takedown.py",
    ),
    Fault(
        "BOS of later pieces",
        "client/packhorse/client/batches/_content.py",
        "has_bos = None if separators.bos_token_id is None else begins == 0",
        "has_bos = None if separators.bos_token_id is None else begins >= 0",
        "tests/client/batches/test_assembly.py",
    ),
    Fault(
        "order of ties in ContextRule",
        "proto/packhorse/topology/context.py",
        "return sorted(range(len(rooms)), key=rooms.__getitem__, reverse=True)",
        "return sorted(range(len(rooms)), key=rooms.__getitem__)[::-1]",
        "tests/topology/test_context.py",
    ),
)


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """The three import roots, copied with their compiled kernels."""
    folder = tmp_path_factory.mktemp("planted")
    for root in ("proto", "server", "client"):
        shutil.copytree(ROOT / root, folder / root, ignore=shutil.ignore_patterns("guides", "examples"))
    return folder


def run_tests(copied: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """Runs tests of this tree over the copied packages."""
    path = os.pathsep.join(str(copied / root) for root in ("proto", "server", "client"))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", tests],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


@pytest.mark.long
def test_without_a_fault_the_tests_pass_over_the_copy(copied):
    done = run_tests(copied, "tests/topology/test_context.py")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_still_be_planted(fault):
    """The tests below are long; who renames in such a line learns at once that this list names it."""
    times = (ROOT / fault.file).read_text(encoding="utf-8").count(fault.right)
    assert times == 1, f"{fault.file} has this line {times} times; write here how it reads now: {fault.right}"


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_nearest_tests_notice(copied, fault):
    source = copied / fault.file
    text = source.read_text(encoding="utf-8")
    try:
        source.write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")
        done = run_tests(copied, fault.tests)
    finally:
        source.write_text(text, encoding="utf-8")
    assert done.returncode == 1, f"no test of {fault.tests} noticed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert "\nFAILED " in done.stdout, done.stdout[-2000:]
