"""`make bench`: runs the benchmarks and prints one table, packhorse beside its peers.

Owns the command; each benchmark stands in a file of its own.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import bench_assembling
import bench_attacks
import bench_balanced_images
import bench_balanced_training
import bench_chats
import bench_cold_start
import bench_context_plans
import bench_decoded
import bench_endurance
import bench_epoch_end
import bench_even_packs
import bench_few_lengths
import bench_first_bin
import bench_floods
import bench_gpu
import bench_locality
import bench_many_streams
import bench_masks
import bench_materialising
import bench_memory
import bench_mixtures
import bench_object_store
import bench_online
import bench_pack_sequences
import bench_packers
import bench_peer_ranks
import bench_peers_streaming
import bench_planning
import bench_prefix_trees
import bench_prepare
import bench_prepare_huge
import bench_processes
import bench_random_access
import bench_rolling_restart
import bench_served_tokens
import bench_sources
import bench_status_page
import bench_streaming
import bench_tls
import bench_tokenize
import bench_training
import bench_two_budgets
import bench_waiting
from harness import Row, as_json, environment, markdown, recorded_run, recorded_runs, show, without_outdated
from outdated import outdated
from workload import FULL, QUICK, Workspace

BENCHMARKS = {
    "planning": bench_planning,
    "packers": bench_packers,
    "pack-sequences": bench_pack_sequences,
    "few-lengths": bench_few_lengths,
    "online": bench_online,
    "even-packs": bench_even_packs,
    "prefix-trees": bench_prefix_trees,
    "materialising": bench_materialising,
    "sources": bench_sources,
    "mixtures": bench_mixtures,
    "locality": bench_locality,
    "epoch-end": bench_epoch_end,
    "first-bin": bench_first_bin,
    "cold-start": bench_cold_start,
    "streaming": bench_streaming,
    "served-tokens": bench_served_tokens,
    "decoded": bench_decoded,
    "peer-ranks": bench_peer_ranks,
    "processes": bench_processes,
    "tls": bench_tls,
    "waiting": bench_waiting,
    "context-plans": bench_context_plans,
    "two-budgets": bench_two_budgets,
    "assembling": bench_assembling,
    "training": bench_training,
    "random-access": bench_random_access,
    "balanced-training": bench_balanced_training,
    "balanced-images": bench_balanced_images,
    "masks": bench_masks,
    "gpu": bench_gpu,
    "memory": bench_memory,
    "attacks": bench_attacks,
    "floods": bench_floods,
    "tokenize": bench_tokenize,
    "chats": bench_chats,
    "object-store": bench_object_store,
    "prepare": bench_prepare,
    "prepare-huge": bench_prepare_huge,
    "many-streams": bench_many_streams,
    "status-page": bench_status_page,
    "rolling-restart": bench_rolling_restart,
    "endurance": bench_endurance,
    "peers-streaming": bench_peers_streaming,
}
ONLY_WHEN_NAMED = (
    "gpu",
    "prepare-huge",
    "many-streams",
    "status-page",
    "rolling-restart",
    "endurance",
    "peers-streaming",
)
"""What needs a GPU, takes minutes by itself, or much of a disk."""
RESULTS = Path(__file__).with_name("RESULTS.md")


def main() -> None:
    """Parses, measures, shows."""
    parser = argparse.ArgumentParser(description="Measures packhorse beside the packages it is compared to.")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, to see that all works: some minutes")
    named = f"{', '.join(BENCHMARKS)}; when left out, all but {', '.join(ONLY_WHEN_NAMED)}"
    parser.add_argument("--only", action="append", choices=BENCHMARKS, metavar="NAME", help=named)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the measurements as JSON")
    parser.add_argument("--write", action="store_true", help="write what this run measured to RESULTS.md")
    parser.add_argument("--outdated", action="store_true", help="list what was run before its code changed, and end")
    arguments = parser.parse_args()
    default = [name for name in BENCHMARKS if name not in ONLY_WHEN_NAMED]
    if arguments.outdated:
        files = {name: Path(str(module.__file__)) for name, module in BENCHMARKS.items()}
        print(*outdated(recorded_runs(RESULTS.read_text()), files, default), sep="\n")
        return
    if arguments.write and arguments.quick:
        parser.error("--write is for full sizes: leave out --quick")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as where pip installed: nobody compiles imports in every process
    facts = environment(sys.argv[1:])
    names = arguments.only or default
    chosen = {name: module for name, module in BENCHMARKS.items() if name in names}
    rows: list[Row] = []
    took: list[str] = []
    with Workspace(QUICK if arguments.quick else FULL) as workspace:
        facts["data"] = workspace.description
        for name, module in chosen.items():
            started = time.perf_counter()
            print(f"{name} …", file=sys.stderr, end=" ", flush=True)
            rows += module.run(workspace)
            took.append(f"{name} {time.perf_counter() - started:.0f} s")
            print(took[-1].removeprefix(name).strip(), file=sys.stderr)
    facts["took"] = ", ".join(took)
    show(rows, facts)
    if arguments.output:
        arguments.output.write_text(json.dumps(as_json(rows, facts), indent=2, ensure_ascii=False) + "\n")
    if arguments.write:
        title = ", ".join(arguments.only) if arguments.only else "everything"
        earlier = recorded_runs(RESULTS.read_text()) if arguments.only else []
        run = recorded_run(title, rows, facts, [module.NOTE for module in chosen.values()])
        RESULTS.write_text(markdown(without_outdated([run, *earlier])))


if __name__ == "__main__":
    main()
