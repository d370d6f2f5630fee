"""`draw_bins`: bins of a server, drawn by position.

Owns requesting them. Leaves the facts of their sequences to `_row_maker`, and showing them to `picture`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from packhorse.client import Client
from packhorse.client.options import NO_SKIPS
from packhorse.pictures._row_maker import RowMaker
from packhorse.pictures._rows import summary_of
from packhorse.pictures.beginnings import Decode
from packhorse.pictures.picture import Picture
from packhorse.topology import Skips

if TYPE_CHECKING:
    from packhorse.client import TokenSource

_DRAWN_BINS = 8
"""Number of bins that are drawn if no positions are given."""


def draw_bins(
    client: Client,
    dataset: str,
    *,
    positions: Sequence[int] | None = None,
    epoch: int = 0,
    seed: int = 0,
    skip: Skips = NO_SKIPS,
    tokens: "TokenSource | None" = None,
    decode: Decode | None = None,
) -> Picture:
    """Draws bins of an epoch: their sequences to scale and, with a token source, how each begins.

    Example:
        >>> from packhorse.client import connect
        >>> with connect("embedded:datasets") as client:
        ...     print(draw_bins(client, "corpus", positions=[1], seed=1).text(width=60))
        corpus, epoch 0, seed 1
        1 row of 8 tokens: 2 sequences, 8 tokens (100.00 % full)
        position 1  │──────── 0 (5) ────────│─── 1 (3) ───│  8 of 8

    Args:
        client: as `connect` returns it.
        dataset: name of the dataset.
        positions: positions of the bins; None for the epoch's first eight.
        epoch: 0-based.
        seed: seed of the run.
        skip: positions to leave out; the others are numbered again from 0.
        tokens: a source of sequences' own lengths, origins and first tokens.
        decode: turns tokens into text, e.g. `tokenizer.decode`.

    Raises:
        TokenSourceError: the source and the plan disagree.
    """
    info = client.get_dataset(dataset)
    # Opened for its header: the number of bins that the skips leave, and the digest.
    with client.stream_bins(dataset, epoch=epoch, seed=seed, skip=skip) as stream:
        header = stream.header
    if positions is None:
        positions = range(min(_DRAWN_BINS, header.num_bins))
    block = client.get_bins(
        dataset, epoch=epoch, seed=seed, positions=list(positions), skip=skip, expected_digest=header.digest
    )
    rows = RowMaker(client, info, tokens=tokens, decode=decode).rows(block)
    return Picture(
        title="; ".join([f"{dataset}, epoch {epoch}, seed {seed}", *map(str, info.resources)]),
        rows=rows,
        num_rows=len(rows),
        summary=summary_of(rows, info.max_seq_len),
    )
