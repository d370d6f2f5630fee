"""Which data-parallel rank a process is: as told, or as a mesh or Megatron says; never a guess."""

import sys
import warnings
from types import SimpleNamespace

import pytest
import torch

from packhorse.client import PackedDataset
from packhorse.client.loading.ranks import find_rank
from packhorse.client.loading.workers.preemption import protected_fork_server


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def mesh_of(rank, **sizes):
    """As a DeviceMesh of these dimensions looks from a global rank."""
    names, shape = tuple(sizes), tuple(sizes.values())
    place = torch.unravel_index(torch.tensor(rank), shape)
    return SimpleNamespace(mesh_dim_names=names, shape=shape, get_local_rank=lambda dimension: int(place[dimension]))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"dp": 4, "tp": 2}, [(r // 2, 4) for r in range(8)]),
        ({"pp": 2, "dp": 2, "tp": 2}, [(r // 2 % 2, 2) for r in range(8)]),
        ({"dp_replicate": 2, "dp_shard": 2, "cp": 2}, [(r // 2, 4) for r in range(8)]),
        ({"dp_replicate": 2, "dp_shard_in_ep": 2, "tp": 2}, [(r // 2, 4) for r in range(8)]),
        ({"data_parallel": 4, "tensor_parallel": 2}, [(r // 2, 4) for r in range(8)]),
        ({"dp": 8}, [(r, 8) for r in range(8)]),
    ],
)
def test_a_mesh_tells_the_data_parallel_rank(sizes, expected):
    assert [find_rank(mesh_of(rank, **sizes)) for rank in range(8)] == expected


def test_a_mesh_of_unknown_dimensions_is_asked_about():
    with pytest.raises(ValueError, match=r"whether data is divided over rows is not known; pass .*mesh\['dp'\]"):
        find_rank(mesh_of(0, rows=2, tp=2))
    assert find_rank(mesh_of(1, rows=2)) == (1, 2)
    for name in (
        "dp_cp",
        "dp_shard_cp",
    ):  # flattened, as torchtitan and accelerate do: those of one cp share their data
        with pytest.raises(ValueError, match=f"whether data is divided over {name} is not known"):
            find_rank(mesh_of(1, **{name: 4}))
    with pytest.raises(ValueError, match="whether data is divided over ep is not known"):
        find_rank(mesh_of(1, dp=2, ep=2))
    with pytest.raises(ValueError, match="the device mesh has unnamed dimensions"):
        find_rank(SimpleNamespace(mesh_dim_names=None, shape=(2, 2)))


def test_arguments_come_first(monkeypatch):
    monkeypatch.setenv("TP_SIZE", "2")
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_rank((1, 2)) == (1, 2)
    with pytest.warns(UserWarning, match=r"TP_SIZE=2 divides.*global rank 2 of 4 is not the data-parallel one"):
        assert find_rank((2, 4)) == (2, 4)
    with pytest.raises(ValueError, match=r"rank must be \(rank, world_size\) or a torch DeviceMesh, got 1"):
        find_rank(1)
    with pytest.raises(ValueError, match=r"rank must be an integer in \[0, 1\], got 2"):
        find_rank((2, 2))


def test_megatron_is_asked_where_it_is_initialised(monkeypatch):
    state = SimpleNamespace(
        model_parallel_is_initialized=lambda: True,
        get_data_parallel_rank=lambda: 3,
        get_data_parallel_world_size=lambda: 4,
    )
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    assert find_rank() == (3, 4)
    monkeypatch.setenv("RANK", "6")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.warns(UserWarning, match="Megatron divides the model over 2 ranks"):
        assert find_rank((6, 8)) == (6, 8)
    state.model_parallel_is_initialized = lambda: False
    assert find_rank() == (6, 8)


def test_accelerate_s_parallelism_is_seen(monkeypatch):
    from accelerate import ParallelismConfig
    from accelerate.state import AcceleratorState

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    config = ParallelismConfig(dp_shard_size=2, cp_size=2)
    monkeypatch.setitem(AcceleratorState._shared_state, "parallelism_config", config)
    with pytest.raises(ValueError, match="accelerate's ParallelismConfig divides the model over 2 ranks"):
        find_rank()
    monkeypatch.setitem(AcceleratorState._shared_state, "parallelism_config", ParallelismConfig(dp_shard_size=4))
    assert find_rank() == (1, 4)


@pytest.mark.parametrize("name", ["TP_SIZE", "TENSOR_MODEL_PARALLEL_SIZE", "PARALLELISM_CONFIG_CP_SIZE"])
def test_a_launcher_that_divides_the_model_is_not_guessed_about(monkeypatch, name):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert find_rank() == (1, 4)
    monkeypatch.setenv(name, "2")
    with pytest.raises(ValueError, match=rf"{name}=2 divides the model.*pass rank=mesh, or rank=\(rank, world_size\)"):
        find_rank()
    monkeypatch.setenv(name, "1")
    assert find_rank() == (1, 4)


def _of_real_meshes(rank, store, arguments, results):
    from torch.distributed.device_mesh import init_device_mesh

    torch.distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=4)
    before = find_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    try:
        PackedDataset(*arguments, batch_size=8)
        refused = ""
    except ValueError as error:
        refused = str(error)
    batches = [batch["ids"].tolist() for batch in PackedDataset(*arguments, batch_size=8, rank=mesh)]
    results.put((rank, before, find_rank(mesh), find_rank(mesh["dp"]), refused, batches))
    torch.distributed.destroy_process_group()


def test_two_by_two_processes_share_an_epoch_by_their_mesh(tmp_path, running_server, corpus):
    context = protected_fork_server()
    results, arguments = context.SimpleQueue(), (running_server.target, "rows", corpus.megatron)
    processes = [
        context.Process(target=_of_real_meshes, args=(rank, tmp_path / "store", arguments, results))
        for rank in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    came = sorted(results.get() for _ in range(4))
    for rank, before, of_mesh, of_dimension, refused, _ in came:
        assert before == (rank, 4)
        assert of_mesh == of_dimension == (rank // 2, 2)
        assert "divides the model over its dimension 'tp'" in refused
    first, first_peer, second, second_peer = (batches for *_, batches in came)
    assert first == first_peer
    assert second == second_peer
    ids = [number for batches in (first, second) for batch in batches for number in batch]
    assert sorted(ids) == list(range(2000))
