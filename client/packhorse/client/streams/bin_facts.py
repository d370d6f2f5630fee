"""The facts of each bin as plain Python values, ready for JSON: `packhorse stream` prints them, exports write them."""

from collections.abc import Iterator
from typing import Any

from packhorse.client.streams.blocks import BinBlock
from packhorse.types import StreamHeader


def facts_of_bins(block: BinBlock, header: StreamHeader) -> Iterator[dict[str, Any]]:
    """Yields a dict for each bin: position, ids, lengths, and what else the block has, such as tokens.

    The block's redactions are left out. The values are numbers, texts and lists, which JSON can hold.

    Args:
        block: the bins.
        header: the header of their stream, which names a mixture's components.
    """
    of_sequences = {
        name: array.tolist()
        for name, array in (
            ("ids", block.ids),
            ("lengths", block.lengths),
            ("first_tokens", block.first_tokens),
            ("groups", block.group_ids),
            ("rows", block.rows),
        )
        if array is not None
    }
    for name, sent in (("tokens", block.tokens), ("loss_mask", block.loss_mask)):
        if sent is not None:
            of_sequences[name] = [values.tolist() for values in sent.by_entry()]  # a list for each sequence
    names = component_names(block, header)
    start = 0
    for number, (position, end) in enumerate(zip(block.positions.tolist(), block.bin_ends.tolist(), strict=True)):
        facts = {"position": position}
        facts |= {name: values[start:end] for name, values in of_sequences.items()}
        groups = facts.pop("groups", [])
        if any(group >= 0 for group in groups):  # a mixture's block may hold bins with groups and bins without
            facts["groups"] = [group if group >= 0 else None for group in groups]
        if names is not None:
            facts["component"] = names[number]
        yield facts
        start = end


def component_names(block: BinBlock, header: StreamHeader) -> list[str | None] | None:
    """Returns the name of each bin's component, None for an empty bin; or None if the dataset is not a mixture.

    Args:
        block: the bins.
        header: the header of their stream, which names the components.
    """
    if block.component_ids is None:
        return None
    return [None if each < 0 else header.components[each].name for each in block.component_ids.tolist()]
