"""What will go warns whoever uses it, with the version and what to use instead, and works until then."""

import warnings
from dataclasses import dataclass

import click
import pytest
from click.testing import CliRunner

from packhorse import deprecations
from packhorse.cli.shared.old_flags import old_flag
from packhorse.deprecations import DECLARED, Deprecation, declare, deprecated, deprecated_names, deprecated_parameter

WHEN = {"since": "0.2", "removed": "0.3"}


@pytest.fixture(autouse=True)
def _nothing_stays_declared(monkeypatch):
    monkeypatch.setattr(deprecations, "DECLARED", DECLARED.copy())


def test_a_function_warns_where_it_is_called_and_still_works():
    @deprecated("packhorse.client.old", **WHEN, instead="packhorse.client.new")
    def old(a, *, b=1):
        """Adds."""
        return a + b

    with pytest.warns(FutureWarning) as caught:
        assert old(1, b=2) == 3
    said = "packhorse.client.old is deprecated since 0.2 and goes in 0.3: use packhorse.client.new"
    assert [str(each.message) for each in caught] == [said]
    assert caught[0].filename == __file__
    assert old.__deprecated__ == said
    assert (old.__name__, old.__doc__) == ("old", "Adds.")


def test_a_class_warns_once_when_it_is_made_and_not_for_its_subclasses():
    @deprecated("packhorse.client.Old", **WHEN, instead="packhorse.client.New")
    @dataclass(frozen=True)
    class Old:
        width: int

    class Newer(Old):
        pass

    with pytest.warns(FutureWarning, match=r"Old is deprecated since 0\.2") as caught:
        assert Old(3).width == 3
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        assert Newer(3).width == 3
    assert isinstance(Newer(3), Old)
    renamed = deprecated("packhorse.client.Newer", **WHEN, instead="packhorse.client.New")(Newer)
    with pytest.warns(FutureWarning, match="Newer is deprecated"):
        assert renamed(3).width == 3  # its __init__ is inherited


def test_an_old_parameter_gives_its_value_to_the_new_one():
    @deprecated_parameter("packhorse.client.connect", "address", **WHEN, instead="target")
    def connect(target, *, ca=None):
        return target, ca

    with warnings.catch_warnings(action="error"):
        assert connect("a", ca="b") == ("a", "b")
    with pytest.warns(FutureWarning, match=r"connect\(address\) is deprecated since 0\.2 .*: use target") as caught:
        assert connect(address="a") == ("a", None)
    assert caught[0].filename == __file__
    with pytest.raises(TypeError, match="target or its old name address, not both"):
        connect(target="a", address="a")
    with pytest.raises(ValueError, match="no parameter where"):
        deprecated_parameter("packhorse.client.connect", "address", **WHEN, instead="where")(lambda target: target)


def test_an_old_name_of_a_package_gives_what_has_the_new_one():
    @deprecated_names("packhorse.client", {"Old": "New"}, **WHEN)
    def load(name):
        return f"loaded {name}"

    with pytest.warns(FutureWarning, match=r"packhorse\.client\.Old .*: use packhorse\.client\.New") as caught:
        assert load("Old") == "loaded New"
    assert caught[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        assert load("New") == "loaded New"


@pytest.fixture
def run_listen():
    """Function: runs a command whose --listen was --bind, and returns the result."""

    @click.command
    @click.option("--listen", envvar="LISTEN", default="here", type=click.Choice(["here", "there"]))
    @old_flag("packhorse serve", "--bind", **WHEN, instead="--listen")
    def command(listen):
        click.echo(listen)

    return lambda *arguments, **variables: CliRunner().invoke(command, arguments, env=variables)


def test_an_old_flag_gives_its_value_to_the_new_one_and_says_so(run_listen):
    result = run_listen("--bind", "there")
    assert result.stdout == "there\n"
    assert result.stderr == ("Warning: packhorse serve --bind is deprecated since 0.2 and goes in 0.3: use --listen\n")
    assert "Deprecated since 0.2, goes in 0.3: use --listen." in " ".join(run_listen("--help").stdout.split())


def test_the_new_flag_is_as_it_was(run_listen):
    result = run_listen("--listen", "there")
    assert (result.stdout, result.stderr) == ("there\n", "")
    assert run_listen(LISTEN="there").stdout == "there\n"
    assert run_listen("--bind", "here", "--listen", "there").stdout == "there\n"
    assert run_listen("--bind", "nowhere").exit_code == 2


def test_a_variable_does_not_come_before_an_old_flag(run_listen):
    result = run_listen("--bind", "there", LISTEN="here")
    assert result.exit_code == 2
    assert "--bind is now --listen" in result.stderr


def test_a_switch_that_was_renamed():
    @click.command
    @click.option("--quiet", is_flag=True)
    @old_flag("packhorse serve", "--silent", **WHEN, instead="--quiet", is_flag=True)
    def command(quiet):
        click.echo(quiet)

    assert [CliRunner().invoke(command, given).stdout for given in (["--silent"], [])] == ["True\n", "False\n"]


def test_an_old_flag_of_zero_is_a_value():
    @click.command
    @click.option("--limit", type=int, default=8)
    @click.option("--names", multiple=True, default=["a"])
    @old_flag("packhorse serve", "--most", **WHEN, instead="--limit", type=int)
    @old_flag("packhorse serve", "--called", **WHEN, instead="--names", multiple=True)
    def command(limit, names):
        click.echo((limit, names))

    run = CliRunner().invoke
    assert [run(command, given).stdout for given in (["--most", "0"], [])] == ["(0, ('a',))\n", "(8, ('a',))\n"]
    assert run(command, ["--called", "b"]).stdout == "(8, ('b',))\n"


@pytest.mark.parametrize("removed", ["0.2", "0.1", "0.2.9"])
def test_nothing_is_declared_that_goes_without_a_release_that_warns(removed):
    with pytest.raises(ValueError, match=r"old cannot go in 0\.\d"):
        Deprecation("old", since="0.2", removed=removed, instead="new")


def test_what_is_declared_is_on_the_list():
    with pytest.raises(ValueError, match="'soon' is no version"):
        declare("packhorse_old_total", since="soon", removed="0.3", instead="new")
    found = declare("packhorse_old_total", since="0.9", removed="1.0", instead="packhorse_new_total")
    assert deprecations.DECLARED["packhorse_old_total"] == found
    assert "packhorse_old_total" not in DECLARED
