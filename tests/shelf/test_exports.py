"""Packages of the shelf: every name is there, and the client's help names each."""

from importlib import import_module
from typing import Literal, get_origin

import pytest

from packhorse import client

SHELF = ("export", "losses", "parallel", "pictures", "proof", "rollouts", "trainers", "vision")


@pytest.mark.parametrize("name", SHELF)
def test_every_name_of_a_package_is_there(name):
    module = import_module(f"packhorse.{name}")
    assert len(module.__all__) == len(set(module.__all__))
    for each in module.__all__:
        found = getattr(module, each)
        assert each.isupper() or get_origin(found) is Literal or found.__name__ == each
    assert f"packhorse.{name} " in client.__doc__
