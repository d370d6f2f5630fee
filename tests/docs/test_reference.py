"""The reference is what the code says, nothing public lacks a description, and every error has a way out."""

import re
import tomllib

import click
import pytest
from generate_reference import WRITERS
from pages import GUIDES, ROOT, anchors_of, text_of
from reference.commands import option_row
from reference.markdown import UndocumentedError
from reference.names import parameter_rows

from packhorse.client import errors
from packhorse.v1 import packing_pb2


@pytest.mark.parametrize("name", WRITERS)
def test_page_is_up_to_date(name):
    assert (GUIDES / name).read_text() == WRITERS[name]().rstrip() + "\n", "run `make reference` and commit the pages"


def test_a_flag_without_help_is_named():
    with pytest.raises(UndocumentedError, match="some command --flag"):
        option_row("some command", click.Option(["--flag"]))


def test_a_parameter_without_words_is_named():
    with pytest.raises(UndocumentedError, match=r"some\.function: parameter width"):
        parameter_rows("some.function", lambda height, width: None, {"height": "of it"})


def test_every_extra_is_described():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {f"`{extra}`" for extra in extras} <= set(
        re.findall(r"^\| (`\w+`) \|", text_of("client/guides/install.md"), re.M)
    )


TROUBLESHOOTING = "client/guides/troubleshooting.md"


@pytest.mark.parametrize("reason", [r.removeprefix("ERROR_REASON_") for r in packing_pb2.ErrorReason.keys()[1:]])
def test_every_reason_has_a_way_out(reason):
    assert reason.lower() in anchors_of(TROUBLESHOOTING)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, errors.PackhorseError) and found is not errors.PackhorseError
    ],
)
def test_every_exception_stands_in_troubleshooting(name):
    assert re.search(rf"`{name}`", text_of(TROUBLESHOOTING))
