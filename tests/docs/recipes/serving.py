"""A server of its own on a free port, for proofs that ask one."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(root: Path, *announced: str) -> Iterator[list[str]]:
    """Starts `packhorse serve` on a folder, and yields the addresses that it announces by these prefixes."""
    command = [sys.executable, "-m", "packhorse.cli", "serve", "--data-root", str(root), "--listen", "127.0.0.1:0"]
    command += ["--metrics-listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True) as server:
        try:
            found: dict[str, str] = {}
            assert server.stdout is not None
            said = []
            for line in server.stdout:
                said.append(line)
                found |= {prefix: line.removeprefix(prefix).strip() for prefix in announced if line.startswith(prefix)}
                if len(found) == len(announced):
                    break
            assert len(found) == len(announced), "".join(said)
            yield [found[prefix] for prefix in announced]
        finally:
            server.terminate()
            server.communicate()
