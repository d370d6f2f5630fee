"""As torchrun on one node, and PyTorch is imported once: `python -m tests.examples.forked_ranks --nproc-per-node N …`.

Leaves rendezvous, restarts and the end of the other ranks to torchrun, which the tests of `make test-long` start.
"""

import os
import runpy
import sys
from pathlib import Path

import torch._dynamo  # noqa: F401 (optimizers import it when they are made)
from tests.servers import free_port

import packhorse.client.masks  # noqa: F401 (as the examples do)


def main() -> None:
    """Runs a script in every rank, and fails where one of them does."""
    _, _, processes, _, script, *arguments = sys.argv
    os.environ |= {"WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = []
    for rank in range(int(processes)):
        pid = os.fork()
        if pid == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            sys.argv = [script, *arguments]
            sys.path.insert(0, str(Path(script).parent))
            runpy.run_path(script, run_name="__main__")
            return
        ranks.append(pid)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    sys.exit(max(map(abs, statuses)))


if __name__ == "__main__":
    main()
