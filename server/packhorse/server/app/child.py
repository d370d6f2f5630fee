"""One process of a server of several, from its start to its exit: `python -m packhorse.server.app.child DESCRIPTOR`.

Owns the order in which a process is set up, and reporting a failed start to the parent. Leaves serving to `running`,
the answers to the parent to `sibling`, and starting this to `processes`.
"""

import asyncio
import logging
import os
import shutil
import sys
from multiprocessing.connection import Connection
from typing import Any

from prometheus_client import values

from packhorse.server.app.sibling import ProcessSettings, Sibling
from packhorse.server.base.logs import set_up_logging
from packhorse.server.base.output import never_wait_for_stderr
from packhorse.storage import never_wait_for_files

_LOG = logging.getLogger("packhorse.server.app.child")  # this file runs as __main__


def main() -> None:
    """Runs one process: serves with the parent's settings, then exits without waiting for threads inside kernels."""
    parent: Connection[Any, Any] = Connection(int(sys.argv[1]))
    settings: ProcessSettings = parent.recv()
    set_up_logging(settings.config.log_format, settings.config.log_level)
    never_wait_for_stderr()
    never_wait_for_files()
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(settings.folder)
    # Before any metric is made, because each takes its values' class when it is made.
    values.ValueClass = values.MultiProcessValue(lambda: settings.slot)  # type: ignore[no-untyped-call]
    from packhorse.server.app.running import serve  # only now, so that nothing it imports can make a metric earlier

    sibling = Sibling(settings, parent)
    status = 0
    try:
        asyncio.run(serve(settings.config, ready=lambda *_: None, sibling=sibling))
    except (ValueError, OSError) as error:
        parent.send(error)
        status = 1
    except Exception as error:
        _LOG.exception("this process failed")
        parent.send(OSError(f"a server's process failed: {error}; its trace is in the log"))
        status = 1
    if sibling.is_orphan:
        shutil.rmtree(settings.folder, ignore_errors=True)
    logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    main()
