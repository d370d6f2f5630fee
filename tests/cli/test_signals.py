"""A signal ends a command, also where C code loses the exception that it raises."""

import ctypes
import os
import signal
import sys
import time

import pytest

from packhorse.cli.shared.signals import stopped_by_signals


def test_a_signal_whose_exception_a_callback_loses_ends_the_command_all_the_same(capsys):
    """Ctypes prints what a callback raises and goes on, and so does the compiler that Numba calls by it."""

    @ctypes.CFUNCTYPE(None)
    def callback():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)

    def command():
        with stopped_by_signals("nothing was written."):
            callback()
            time.sleep(30)
            pytest.fail("the signal was lost")

    before = sys.unraisablehook
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "Stopped by SIGTERM: nothing was written.\n"
    assert sys.unraisablehook is before
