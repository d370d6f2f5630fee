"""The torch process groups for every number of ranks that may share sequences.

Leaves choosing a rank's sequences and tensors to `parallel.context`.
"""

import torch.distributed as dist

from packhorse.topology import ContextRule


def context_process_groups(rule: ContextRule) -> dict[int, "dist.ProcessGroup"]:
    """Makes this rank's process groups, one of every size; all ranks must call it, once.

    Example:
        >>> rule = ContextRule(tokens_per_rank=8192, max_context_parallel=16)
        >>> process_groups = context_process_groups(rule)  # doctest: +SKIP
        >>> process_group = process_groups.get(part.cp_size)  # None if a rank works alone  # doctest: +SKIP

    Args:
        rule: as in `context_batch`.

    Returns:
        Size → this rank's process group of that size, for sizes 2, 4, … `rule.max_context_parallel`.
        `ContextBatch.cp_size` chooses one. Its first rank is `ContextBatch.first_rank`.

    Raises:
        ValueError: the number of all ranks is not a multiple of `max_context_parallel`.
    """
    # Called only to refuse a number of ranks that is no multiple of `max_context_parallel`.
    rule.of_loader(dist.get_rank(), dist.get_world_size())
    sizes = [1 << bits for bits in range(1, rule.max_context_parallel.bit_length())]  # 16 -> [2, 4, 8, 16]
    # `new_subgroups` returns this rank's process group, and a list of all.
    return {size: dist.new_subgroups(group_size=size)[0] for size in sizes}  # type: ignore[no-untyped-call]
