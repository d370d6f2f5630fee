"""What eight streams keep of their rate while each other method is asked for the most that it grants.

The attacks are those of tests/chaos; `python tests/benchmarks/run.py --only attacks` prints a table.
"""

import sys
from pathlib import Path

from harness import Row
from workload import Workspace, serving

sys.path.append(str(Path(__file__).parents[1] / "chaos"))

NOTE = (
    "attacks: sequences a second that eight streams of one server read during an attack, beside the same streams just "
    "before and after it; clients and server share the machine."
)
_SECONDS = 2.0
_LEAST_SHARE = 0.5


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    import load

    folder = workspace.root / "attacked"
    folder.mkdir()
    rows = []
    with serving(load.prepare_datasets(folder, num_sequences=1_000_000)) as (address, _):
        for name, (attack, num_attackers) in load.ATTACKS.items():
            with load.Readers(address) as readers:
                readers.rate(1.0)
                alone = [readers.rate(_SECONDS)]
                with load.under(attack, address, num_attackers):
                    readers.rate(1.0)
                    during = readers.rate(2 * _SECONDS)
                readers.rate(1.0)
                alone.append(readers.rate(_SECONDS))
            assert not readers.failures, readers.failures
            share = during / (sum(alone) / len(alone))
            rows.append(
                Row(
                    what=f"streams beside {name}",
                    size=f"{load.NUM_STREAMS} streams, {num_attackers} attackers",
                    ours=f"{during / 1e6:.2f} M ids/s",
                    peer=f"{sum(alone) / len(alone) / 1e6:.2f} M ids/s, nobody attacking",
                    ratio=share,
                    target=f"≥ {_LEAST_SHARE}",
                    reached=share >= _LEAST_SHARE,
                )
            )
    return rows
