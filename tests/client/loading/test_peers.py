"""Peers of one model: the first reads, all get the same batches, and nobody waits for one that failed."""

import json
from pathlib import Path

import pytest
import torch.distributed as dist
from tests import scripts

from packhorse.client.loading.peers import Peers

NUM_RANKS = 4
"""Two data-parallel ranks, each of two peers."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each rank saw, in order of ranks."""
    folder = tmp_path_factory.mktemp("peers")
    done = scripts.run(Path(__file__).with_name("peer_rank.py").read_text(), folder, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(NUM_RANKS)]


@pytest.mark.parametrize("name", ["rows", "preset", "workers"])
def test_batches_are_those_of_a_rank_that_reads_alone(found, name):
    for data_rank in range(2):
        alone, *peers = (found[rank][name] for rank in (2 * data_rank, 2 * data_rank, 2 * data_rank + 1))
        assert len(alone["alone"]) > 3
        for peer in peers:
            assert peer["shared"] == alone["alone"]
    assert found[0][name]["alone"] != found[2][name]["alone"]


def test_only_the_first_reads(found):
    assert [rank["num_read"] for rank in found] == [found[0]["num_read"], 0, found[2]["num_read"], 0]
    assert found[0]["num_read"] > 0


def test_states_agree_and_resume_on_all(found):
    for first, second in ((found[0], found[1]), (found[2], found[3])):
        assert first["state"] == second["state"]
        assert first["resumed"] == second["resumed"] == first["rows"]["alone"][2:]


def test_iteration_that_was_left_begins_again_on_all(found):
    for rank in found:
        assert rank["left"][0] == rank["left"][1]


def test_failure_of_the_first_reaches_its_peers(found):
    for rank in (0, 2):
        assert found[rank]["failure"].startswith("TokenSourceError")
        told = "RuntimeError: the first of this rank's peers, which reads for all of them, failed: "
        assert found[rank + 1]["failure"] == told + found[rank]["failure"]


def test_peers_that_would_read_something_else_are_refused(found):
    for rank in found:
        assert rank["disagreement"] == (
            "peers must read the same, and the seed is 1 on the first and 2 on number 1; give all of them the same, "
            "LoaderOptions(rank=…) included"
        )


def test_mesh_of_several_dimensions_is_refused(found):
    for rank in found:
        assert rank["mesh"] == (
            "peers is a mesh of 2 dimensions, dp, tp; give those that divide the model as one, "
            "mesh['tp', 'cp']._flatten('model'), or their process group"
        )


def test_what_is_no_group_is_refused():
    with pytest.raises(ValueError, match="peers must be a process group or a mesh's dimension, got str"):
        Peers.of("tp")


def test_rank_by_itself_has_no_peers(tmp_path):
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert Peers.of(dist.group.WORLD) is None
    finally:
        dist.destroy_process_group()
