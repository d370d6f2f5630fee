"""Preparing as many rows as fit on a disk, on all cores: time and memory beside a tenth of them.

Takes about 11 GB of disk at full size, below the temporary folder (TMPDIR names another one).
"""

import os
import shutil

from bench_prepare import measured
from harness import Row, Sample
from workload import MAX_SEQ_LEN, PACKHORSE, Workspace, in_words

NOTE = (
    "prepare-huge: `packhorse prepare` of a column of lengths on all cores, once, from start to exit; anonymous memory "
    "of all its processes together, beside a tenth of the rows. Run by name only: it takes about 11 GB of disk."
)
_BYTES_A_ROW = 12
"""Of the Parquet file, of the runs and of the pool, with some to spare."""


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    sizes = (workspace.sizes.huge // 10, workspace.sizes.huge)
    wanted, free = sizes[1] * _BYTES_A_ROW, shutil.disk_usage(workspace.root).free
    if free < wanted:
        raise SystemExit(
            f"prepare-huge takes {wanted / 1e9:.0f} GB of disk, and {workspace.root} has {free / 1e9:.0f} GB free; "
            "name a larger folder with TMPDIR"
        )
    flags = ["--length-column", "length", "--max-seq-len", str(MAX_SEQ_LEN), "--workers", str(os.cpu_count())]
    few, many = (
        measured(
            [PACKHORSE, "prepare", "--input", str(workspace.parquet(size, ids=False)), *flags, "--output"],
            workspace.root / "ours",
        )
        for size in sizes
    )
    rate = sizes[1] / many.seconds
    return [
        Row(
            what="prepare on all cores",
            size=f"{in_words(sizes[1])} rows",
            ours=f"{Sample((many.seconds,), 's')}, {rate / 1e6:.1f} M rows/s",
            peer=f"{Sample((few.seconds,), 's')}, {in_words(sizes[0])} rows",
            target="≥ 10 M rows/s",
            reached=rate >= 10e6,
        ),
        Row(
            what="prepare on all cores: anonymous memory of all processes",
            size=f"{in_words(sizes[1])} rows",
            ours=f"{many.anonymous_mb:,.0f} MB",
            peer=f"{few.anonymous_mb:,.0f} MB, {in_words(sizes[0])} rows",
            ratio=few.anonymous_mb / many.anonymous_mb,
            target="≥ 0.8×, < 1 GB",
            reached=many.anonymous_mb < 1000 and few.anonymous_mb >= 0.8 * many.anonymous_mb,
        ),
    ]
