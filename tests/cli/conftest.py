"""Running commands as a shell would, without starting a process for each."""

import json

import pytest
from click.testing import CliRunner

from packhorse.cli import main


@pytest.fixture(scope="session")
def packhorse():
    """Function: runs `packhorse ARGS…` in this process; the result has exit_code, stdout and stderr."""

    def run(*arguments):
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture(scope="session")
def json_lines():
    """Function: every line of an output as the object that it holds."""
    return lambda output: [json.loads(line) for line in output.splitlines()]


@pytest.fixture(scope="session")
def target(running_server):
    """The shared server's address."""
    return running_server.target
