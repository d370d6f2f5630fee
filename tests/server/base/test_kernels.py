"""What is compiled at start: everything that a request runs, so that none waits for the compiler."""

import subprocess
import sys

SCRIPT = """
from numba.core import event
from packhorse.server.base.kernels import compile_kernels
compile_kernels()
compiled = []
class Listener(event.Listener):
    def on_start(self, event): compiled.append(event.data["dispatcher"].py_func.__name__)
    def on_end(self, event): pass
event.register("numba:compile", Listener())
from packhorse.packing import pack_sequences
from packhorse.packing.registry import LIST_ONLY, PACKERS
for algorithm in ("auto", *PACKERS, *LIST_ONLY):
    for limit in (None, 3):
        pack_sequences([2, 2, 3, 3, 4, 5, 6, 7, 7, 7, 8], 14, algorithm=algorithm, max_sequences_per_bin=limit, seed=1)
pack_sequences([5, 5, 6, 10, 10], 19, algorithm="optimal")
print(compiled)
"""


def test_no_packer_compiles_later():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
