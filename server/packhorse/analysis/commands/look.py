"""`Look`: what `packhorse inspect` shows of a folder, and what it adds if the folder was made of raw input.

Owns the sentences and JSON values that only raw input has (efficiencies without packing, a sample's errors, and quick
packers), and what an epoch of any folder costs. Leaves making the folder to `raw`, and all other figures to
`packhorse.analysis`. Server packages are imported in functions, so that a client alone can ask a server.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packhorse.analysis import DatasetReport, PackerComparison
    from packhorse.dataset import PreparedDataset

_QUICK_PACKERS = ("auto", "best-fit", "first-fit", "greedy-knapsack", "length-sorted")
"""The packers that are compared, if they are installed."""
_QUICK_SECONDS = 2.0
"""How long each of them may plan."""
_WAYS = {
    "packed": "packed",
    "padded": "padded",
    "sorted-batches": "sorted by length",
    "random-order": "random order",
    "concatenated": "concatenated",
}
"""Way of filling rows → its name in sentences."""


@dataclass(frozen=True, slots=True)
class Look:
    """A prepared folder to show: the user's own, or a temporary one made of raw input."""

    folder: Path
    """The prepared folder."""
    is_raw: bool = False
    """Whether the folder was made of raw input, and is removed after the look."""
    notes: tuple[str, ...] = ()
    """Sentences about what the figures describe: the sample, and max_seq_len if it is the default."""
    share: float = 1.0
    """The share of the rows that was read, in (0, 1]; below 1 for a sample."""
    next_command: str = ""
    """The command with which the user would prepare the same input; empty for a folder that is prepared."""

    def lines(self, report: "DatasetReport") -> Iterator[str]:
        """Yields the sentences before the figures of raw input: efficiencies, too long sequences, notes, errors."""
        if not self.is_raw:
            return
        packed, over = report.dataset.manifest.efficiency, report.dataset.manifest.over_length
        ways = ", ".join(f"{_WAYS[way.way]} {_percent(way.efficiency)}" for way in report.without_packing)
        yield f"of the tokens that a GPU computes, real are: packed {_percent(packed)}; without packing: {ways}"
        if over.sequences:
            done = f"{over.tokens:,} of their tokens are left out" if over.tokens else "no token is left out"
            yield (
                f"longer than max_seq_len: {over.sequences:,} sequences, here treated as --over-length "
                f"{report.dataset.manifest.options.over_length}: {done}"
            )
        yield from self.notes
        if errors := self._errors(report.dataset):
            shown = ", ".join(f"{_WAYS[name]} {100 * error:.1f}" for name, error in errors.items())
            yield (
                f"standard errors, in points of a percent, from tenths of the sample: {shown}; all rows sort better by "
                "length, and share bins again less, than those of a sample"
            )

    def cost_line(self, report: "DatasetReport", tokens_per_gpu_second: float, gpu_hour_price: float | None) -> str:
        """Returns what an epoch costs, padded, sorted by length and packed.

        Args:
            report: figures of the folder.
            tokens_per_gpu_second: speed of the training, padding included.
            gpu_hour_price: what a GPU-hour costs; None to speak of hours only.
        """
        computed = {way.way: way.computed_tokens for way in report.without_packing}
        texts = []
        for tokens in (computed["padded"], computed["sorted-batches"], report.dataset.manifest.total_capacity):
            hours = tokens / self.share / tokens_per_gpu_second / 3600
            price = f" (costs {hours * gpu_hour_price:,.2f})" if gpu_hour_price else ""
            texts.append(f"{hours:,.2f} GPU-hours{price}")
        about = "an epoch" if self.share == 1 else "an epoch of the whole, estimated,"
        return (
            f"cost: {about} takes {texts[0]} padded to max_seq_len, {texts[1]} sorted by length, and {texts[2]} packed"
        )

    def facts(self, dataset: "PreparedDataset") -> dict[str, Any]:
        """Returns the share read, standard errors and packers as JSON values; empty for a user's own folder."""
        if not self.is_raw:
            return {}
        return {
            "share_read": self.share,
            "standard_errors": self._errors(dataset),
            "packers": self.packers(dataset).facts()["packers"],
        }

    def packers(self, dataset: "PreparedDataset") -> "PackerComparison":
        """Compares quick packers on the same lengths. `packhorse plan compare` compares all packers."""
        from packhorse.analysis import HistogramInput, compare_packers, lengths_before, options_of
        from packhorse.packing import PACKERS

        options = options_of(dataset)
        source = HistogramInput(name=dataset.name, counts=lengths_before(dataset), options=options)
        # "auto" is no name in PACKERS: it chooses among packers.
        quick = [name for name in _QUICK_PACKERS if name == "auto" or name in PACKERS]
        return compare_packers(source, options, algorithms=quick, time_limit_seconds=_QUICK_SECONDS)

    def _errors(self, dataset: "PreparedDataset") -> dict[str, float]:
        """Returns the standard errors by way of filling rows; empty if all rows were read, or with groups."""
        from packhorse.analysis import standard_errors

        return standard_errors(dataset) if self.share < 1 and not dataset.has_groups else {}


def _percent(share: float) -> str:
    """Returns a share in percent, with enough digits that only 1 is shown as 100 %."""
    return f"{share:.2%}" if share == 1 or share < 0.9999 else f"{share:.4%}"
