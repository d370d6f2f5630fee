"""Ranks by a launcher's variables: right, or an error that names the variable; never silently rank 0 of 1."""

import os

import pytest

from packhorse.client.loading._global_rank import LAUNCHERS
from packhorse.client.loading.ranks import find_rank

SILENT = ("RANK", "WORLD_SIZE", *(name for pair in LAUNCHERS for name in pair))


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in SILENT:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, (3, 4)),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (3, 4)),  # torchrun
        ({"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "16"}, (0, 2)),  # torchrun below srun
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1)),
        ({"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "3", "SLURM_NTASKS": "8"}, (0, 1)),  # one run in each task
        ({"WORLD_SIZE": "1"}, (0, 1)),
        ({"RANK": "", "WORLD_SIZE": ""}, (0, 1)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (0, 1)),
        ({"SLURM_NTASKS": "8"}, (0, 1)),  # a login shell of an allocation
    ],
)
def test_a_rank_is_what_the_launcher_says(monkeypatch, variables, found) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert find_rank() == found


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "4"}, r"WORLD_SIZE=4 is set and RANK is not.*torchrun.*rank=\(rank, world_size\)"),
        ({"RANK": "2"}, "RANK=2 is set and WORLD_SIZE is not"),
        ({"RANK": "0"}, "RANK=0 is set and WORLD_SIZE is not"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK=x is no number"),
        ({"RANK": "x"}, "RANK=x is no number"),
        ({"RANK": "1", "WORLD_SIZE": "two"}, "WORLD_SIZE=two is no number"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1 is no number"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, r"RANK=4 is outside of \[0, 4\), as WORLD_SIZE=4 says"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, r"RANK=0 is outside of \[0, 0\)"),
        *(
            ({of_rank: "3", of_size: "8"}, rf"{of_rank}=3 and {of_size}=8 say.*pass rank=\(3, 8\).*rank=\(0, 1\)")
            for of_rank, of_size in LAUNCHERS
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, "SLURM_PROCID=0 and SLURM_NTASKS=8"),
        ({"OMPI_COMM_WORLD_RANK": "a", "OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK=a is no number"),
    ],
)
def test_half_of_a_launcher_is_refused_by_name(monkeypatch, variables, message) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        find_rank()
    assert find_rank((1, 2)) == (1, 2)  # what is given needs no variables
    assert os.environ.keys() >= variables.keys()
