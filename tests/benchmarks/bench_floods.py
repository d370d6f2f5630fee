"""What eight reading streams, and health, keep of their speed while strangers flood the port with frames.

The floods are those of tests/chaos; `python tests/benchmarks/run.py --only floods` prints a table. `packhorse bench`
does not show what they do: it waits in the network for most of its time.
"""

import shutil
import sys
from pathlib import Path

from harness import Row
from workload import Workspace, serving

sys.path.append(str(Path(__file__).parents[1] / "chaos"))

NOTE = (
    "floods: sequences a second that eight streams of one server read during a flood, beside the same streams just "
    "before and after it; then the longest that health took to answer over a new connection during the flood. "
    "Attacker, server, front and readers share the machine. The front is HAProxy with deploy/haproxy/haproxy.cfg."
)
_SECONDS = 2.0
_CONNECTIONS = 16
_LEAST_SHARE = 0.25


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    import flood
    import load
    from flooded import Front, share_under
    from tests.certificates import Authority

    from packhorse.client import Access

    folder = workspace.root / "flooded"
    folder.mkdir()
    authority = Authority(folder / "certificates")
    own = authority.issue("front")
    own.cert.write_text(own.cert.read_text() + own.key.read_text())
    rows = []
    with serving(load.prepare_datasets(folder, num_sequences=1_000_000), "--log-level", "warning") as (address, _):

        def measure(name: str, target: str, access: Access, target_share: str) -> None:
            for kind in flood.KINDS:
                with load.Readers(target, access=access) as readers:
                    readers.rate(1.0)
                    share, health = share_under(
                        readers, target, kind, _CONNECTIONS, access, seconds=_SECONDS, tls=access.ca is not None
                    )
                assert not readers.failures, readers.failures
                rows.append(
                    Row(
                        what=f"streams beside a flood of {kind}, {name}",
                        size=f"{load.NUM_STREAMS} streams, {_CONNECTIONS} connections",
                        ours=f"health within {health:.2f} s",
                        ratio=share,
                        target=target_share,
                        reached=share >= _LEAST_SHARE if target_share else None,
                    )
                )

        measure("no front", address, Access(), "")
        if shutil.which("haproxy"):
            with Front(address, own.cert) as front:
                measure("behind HAProxy", front.target, Access(ca=str(authority.ca)), f"≥ {_LEAST_SHARE}")
    return rows
