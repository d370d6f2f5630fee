"""`packhorse demo`: from text to training on this machine, with a server that is killed in the middle.

Owns the steps of the demo. Leaves its corpus to `demo/corpus`, the process of its server to `demo/server_process`, and
a rank of the training to `demo/trainer`.
"""

import multiprocessing
import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from rich.console import Console

from packhorse.analysis import dataset_report
from packhorse.analysis.plots import save_plot
from packhorse.cli.shared.printing import output_console, table
from packhorse.cli.shared.signals import stopped_by_signals
from packhorse.client import connect
from packhorse.dataset import PreparedDataset, open_prepared
from packhorse.demo.corpus import python_corpus
from packhorse.demo.server_process import DemoServer
from packhorse.demo.trainer import SEED, EpochCount, Report, Step, TrainerOptions, run_rank, token_checksum
from packhorse.formats import MegatronTokens
from packhorse.packing import PackingStats
from packhorse.prepare import PlanOptions, prepare
from packhorse.proof import EpochOfStreams
from packhorse.storage import refuse_url
from packhorse.tokenize import TokenizeSummary, tokenize_documents
from packhorse.topology import Topology

_DATASET = "python"
_VOCAB_SIZE = 8192
_WORLD_SIZE, _WORKERS, _BATCH_SIZE, _EPOCHS = 2, 2, 4, 2  # workers and bins of a batch are those of each rank
_TRAIN_STEPS = 12
"""Steps at the beginning of each epoch that train the model; the batches after them are only counted."""
_KILL_AFTER = Step(epoch=0, number=5)
"""The server is killed once the first rank has reported this step; never, if there are too few documents for it."""
_PROBED_EPOCHS = range(1000, 1020)
"""Epochs that nobody trains on, for measuring the time to the first bin."""
_DRY_SECONDS = 2.0
"""The server is started again once no rank has reported anything for this long: then they have used up all bins."""
_PATIENCE_SECONDS = 1800.0
"""The longest time without a report of any rank. It is long because on a busy machine importing torch takes minutes."""
_JOIN_SECONDS, _END_SECONDS = 60.0, 10.0
"""How long each rank may take to end by itself, and all of them after SIGTERM before they are killed."""


@click.command("demo", context_settings={"show_default": True})
@click.option(
    "--output",
    default="demo-output",
    type=click.Path(path_type=Path),
    help="Folder for token files, the prepared dataset and the plot.",
)
@click.option("--documents", default=25_000, type=click.IntRange(100), help="Documents to take, at most.")
@click.option("--max-seq-len", default=1024, type=click.IntRange(64), help="A bin's capacity in tokens.")
@click.pass_context
def command(context: click.Context, /, output: Path, documents: int, max_seq_len: int) -> None:
    """Tokenize, prepare, serve, train and audit, on the Python standard library's source code.

    Two ranks with two DataLoader workers each read two epochs over gRPC and train a small model; the server is killed
    in the middle and started again. It exits with 1 if any token was lost or repeated.
    """
    refuse_url(output, "--output")
    with stopped_by_signals(f"its server and its ranks have ended; what it made is in {output}"):
        problems = _demonstrate(output_console(), output, documents, max_seq_len)
    context.exit(1 if problems else 0)


def _demonstrate(console: Console, output: Path, documents: int, max_seq_len: int) -> list[str]:
    """Runs all steps, and returns the problems found; none if every token came exactly once."""
    started = time.perf_counter()
    output.mkdir(parents=True, exist_ok=True)
    console.print(f"The whole way takes a few minutes on two cores. What it makes stays in {output}.", markup=False)
    summary = _tokenize(console, output, documents)
    dataset = _prepare(console, summary, output, max_seq_len)
    with DemoServer(output / "datasets", output / "server.log") as server:
        console.rule("serve and train")
        training = _train(console, server, summary, dataset, output)
        problems = _audit(console, server, dataset, summary, training)
    plot = output / "packing.png"
    save_plot(dataset_report(dataset), plot)
    console.rule()
    console.print(f"plot: {plot}    total: {time.perf_counter() - started:.0f} s")
    for problem in problems:
        console.print(f"[red]WRONG: {problem}")
    return problems


def _tokenize(console: Console, output: Path, documents: int) -> TokenizeSummary:
    """Tokenizes the corpus, with a tokenizer trained on it."""
    console.rule("tokenize")
    started = time.perf_counter()
    texts = list(python_corpus(documents))
    summary = tokenize_documents(lambda _: texts, output / "corpus", vocab_size=_VOCAB_SIZE, overwrite=True)
    console.print(
        f"{summary.documents:,} functions and classes of the standard library: {summary.tokens:,} tokens of a BPE "
        f"vocabulary of {summary.vocab_size:,} trained on them, longest {summary.longest:,} "
        f"({time.perf_counter() - started:.1f} s)"
    )
    return summary


def _prepare(console: Console, summary: TokenizeSummary, output: Path, max_seq_len: int) -> PreparedDataset:
    """Prepares the token files, and prints how well they are packed."""
    console.rule("prepare")
    started = time.perf_counter()
    folder = output / "datasets" / _DATASET
    plan = PlanOptions(max_seq_len=max_seq_len, over_length="truncate")
    prepare(summary.idx_path, output=folder, plan=plan, overwrite=True)
    dataset = open_prepared(folder)
    console.print(
        repr(PackingStats.from_templates(dataset.templates, max_seq_len, proven_bound=dataset.manifest.lower_bound))
    )
    manifest = dataset.manifest
    unpacked_efficiency = manifest.total_tokens / (manifest.num_sequences * max_seq_len)
    console.print(
        f"one sequence a row would be {unpacked_efficiency:.2%} efficient: packing needs {manifest.num_bins:,} rows "
        f"instead of {manifest.num_sequences:,} ({time.perf_counter() - started:.1f} s)"
    )
    if manifest.over_length.sequences:
        console.print(
            f"{manifest.over_length.sequences:,} longer sequences were truncated, by {manifest.over_length.tokens:,} "
            "tokens"
        )
    return dataset


def _first_bin_seconds(target: str) -> float:
    """Returns the median time from a request to its first bin, over 20 epochs that were not asked for before."""
    with connect(target, timeout_seconds=_PATIENCE_SECONDS) as client:
        seconds = []
        for epoch in _PROBED_EPOCHS:
            started = time.perf_counter()
            with client.stream_bins(_DATASET, epoch=epoch) as stream:
                next(stream)
            seconds.append(time.perf_counter() - started)
    return float(np.median(seconds))


def _train(
    console: Console, server: DemoServer, summary: TokenizeSummary, dataset: PreparedDataset, output: Path
) -> "_Training":
    """Runs the ranks, kills the server and starts it again; returns the training, which is complete."""
    console.print(f"server on {server.target}; first bin after {_first_bin_seconds(server.target) * 1000:.1f} ms")
    rendezvous = output / "rendezvous"
    rendezvous.unlink(missing_ok=True)
    options = TrainerOptions(
        target=server.target,
        dataset=_DATASET,
        tokens_path=str(summary.idx_path),
        world_size=_WORLD_SIZE,
        num_workers=_WORKERS,
        batch_size=_BATCH_SIZE,
        epochs=_EPOCHS,
        num_train_steps=_TRAIN_STEPS,
        vocab_size=summary.vocab_size,
        max_seq_len=dataset.manifest.max_seq_len,
        rendezvous=str(rendezvous.resolve()),
        timeout_seconds=_PATIENCE_SECONDS,
    )
    training = _Training(console, server)
    with _ranks(options) as (reports, ranks):
        heard = time.monotonic()
        while not training.is_complete:
            try:
                report = reports.get(timeout=_DRY_SECONDS)
            except queue.Empty:
                if training.is_served:  # no rank waits for a server: the model takes its time, or a rank is dead
                    _check_alive(ranks, silent_seconds=time.monotonic() - heard)
                else:
                    training.serve_again()
            else:
                heard = time.monotonic()
                training.take(report)
    rendezvous.unlink(missing_ok=True)
    return training


class _Training:
    """The training while it runs: what its ranks have reported, and whether they have a server."""

    def __init__(self, console: Console, server: DemoServer) -> None:
        self._console = console
        self._server = server
        self.counts: list[list[EpochCount]] = [[] for _ in range(_WORLD_SIZE)]
        """The counts of each epoch that is done, by rank."""
        self.is_served = True
        """Whether the server runs."""
        self.was_killed = False
        """Whether the server was killed; with very few documents the epochs end before."""
        self._steps_without_server = 0  # of all ranks

    @property
    def is_complete(self) -> bool:
        """Whether every rank is done with every epoch."""
        return all(len(epochs) >= _EPOCHS for epochs in self.counts)

    def take(self, report: Report) -> None:
        """Counts a report, and kills the server after a rank's step `_KILL_AFTER`; raises if a rank failed."""
        event = report.event
        if isinstance(event, str):
            raise RuntimeError(f"rank {report.rank} failed: {event}")
        if isinstance(event, EpochCount):
            self.counts[report.rank].append(event)
        elif not self.is_served:
            self._steps_without_server += 1  # its bins had come before the server was killed
        elif event == _KILL_AFTER and not self.was_killed:
            self._server.kill()
            self.is_served, self.was_killed = False, True
            self._console.print(f"[bold]server killed[/] after step {_KILL_AFTER.number} of epoch {_KILL_AFTER.epoch}")

    def serve_again(self) -> None:
        """Starts the server again, once the ranks have used up their bins."""
        self._console.print(
            f"the ranks took {self._steps_without_server} more steps from prefetched bins, and now wait",
            highlight=False,
        )
        self._console.print(f"[bold]server back[/] after {self._server.start():.1f} s, the ranks continue")
        self.is_served = True


def _check_alive(ranks: list[SpawnProcess], *, silent_seconds: float) -> None:
    """Raises a RuntimeError if a rank has ended with an error, or if no rank has reported anything for too long."""
    for rank, process in enumerate(ranks):
        if process.exitcode:
            raise RuntimeError(f"rank {rank} ended with status {process.exitcode}; see above")
    if silent_seconds > _PATIENCE_SECONDS:
        raise RuntimeError(f"no rank did anything for {_PATIENCE_SECONDS:.0f} s; see above")


@contextmanager
def _ranks(options: TrainerOptions) -> Iterator[tuple[Any, list[SpawnProcess]]]:
    """Starts every rank; yields (the queue of their reports, their processes), and ends them afterwards."""
    spawn = multiprocessing.get_context("spawn")
    reports = spawn.Queue()
    ranks = [spawn.Process(target=run_rank, args=(rank, options, reports)) for rank in range(options.world_size)]
    for process in ranks:
        process.start()
    try:
        yield reports, ranks
        for process in ranks:
            process.join(timeout=_JOIN_SECONDS)
    finally:
        for process in ranks:
            process.terminate()
        deadline = time.monotonic() + _END_SECONDS
        for process in ranks:
            process.join(timeout=max(0.0, deadline - time.monotonic()))
            process.kill()
            process.join()


def _audit(
    console: Console,
    server: DemoServer,
    dataset: PreparedDataset,
    summary: TokenizeSummary,
    training: _Training,
) -> list[str]:
    """Compares the ranks' counts with the token file, reads all streams once more, and returns the problems found."""
    console.rule("audit")
    problems = [*_problems_of_counts(console, dataset, summary, training.counts), *_problems_of_streams(server)]
    verdict = "[red]no" if problems else "[green]yes"
    killed = "a killed server" if training.was_killed else "a server that was never killed (too few steps)"
    console.print(
        f"every token of every sequence exactly once in each epoch, over {_WORLD_SIZE} ranks × {_WORKERS} workers "
        f"and {killed}: {verdict}"
    )
    return problems


class _Totals(NamedTuple):
    """The counts of an epoch over all ranks, or of the token file."""

    sequences: int
    tokens: int
    checksum: int


def _problems_of_counts(
    console: Console, dataset: PreparedDataset, summary: TokenizeSummary, counts: list[list[EpochCount]]
) -> list[str]:
    """Compares the ranks' counts with the token file, and prints them epoch by epoch."""
    problems = []
    manifest = dataset.manifest
    expected = _Totals(manifest.num_sequences, manifest.total_tokens, _file_checksum(summary, manifest.max_seq_len))
    rows = []
    for epoch in range(_EPOCHS):
        ranks = [epochs[epoch] for epochs in counts]
        seen = _Totals(
            sequences=sum(count.sequences for count in ranks),
            tokens=sum(count.tokens for count in ranks),
            checksum=sum(count.checksum for count in ranks) % 2**64,
        )
        if seen != expected:
            problems.append(f"epoch {epoch}: the ranks saw {tuple(seen)}, the token file has {tuple(expected)}")
        rows.append(
            (
                str(epoch),
                ", ".join(f"{count.steps:,}" for count in ranks),
                f"{seen.sequences:,}",
                f"{seen.tokens:,}",
                f"{ranks[0].losses[0]:.2f} → {ranks[0].losses[-1]:.2f}",
                f"{max(count.first_batch_seconds for count in ranks):.2f} s",
                f"{seen.tokens / max(count.seconds for count in ranks):,.0f}",
            )
        )
        if len({count.steps for count in ranks}) != 1:
            problems.append(f"epoch {epoch}: the ranks took different numbers of steps")
    columns = ("epoch", "steps of each rank", "sequences", "tokens", "loss", "first batch", "tokens/s")
    console.print(table(*columns, rows=rows))
    return problems


def _problems_of_streams(server: DemoServer) -> list[str]:
    """Reads the streams of every epoch once more, and returns what an audit of them finds."""
    topology = Topology(world_size=_WORLD_SIZE, workers_per_rank=_WORKERS, batch_size=_BATCH_SIZE)
    problems: list[str] = []
    with connect(server.target, timeout_seconds=_PATIENCE_SECONDS) as client:
        info = client.get_dataset(_DATASET)
        for epoch in range(_EPOCHS):
            streams = EpochOfStreams(client=client, dataset=info, epoch=epoch, seed=SEED, topology=topology)
            problems += streams.audit().problems
    return problems


def _file_checksum(summary: TokenizeSummary, max_seq_len: int) -> int:
    """Returns the checksum of all sequences of the token file, to which the checksums of the ranks must add up."""
    tokens = MegatronTokens(summary.idx_path)
    total = 0
    for index in range(len(tokens)):
        sequence = tokens.read(index)[:max_seq_len].astype(np.int64)
        total += token_checksum(sequence, np.arange(len(sequence)), np.array([len(sequence)]))
    return total % 2**64
