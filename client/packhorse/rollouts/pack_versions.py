"""`versions_of_packs`: which version of the policy wrote the rollouts of a batch and of each of its packs.

Owns the two keys of a batch that say so. Leaves keeping versions in separate packs to the planner.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

NO_VERSION = -1
"""Policy version of a pack without rollouts."""


def versions_of_packs(versions: NDArray[np.int64], packs: Sequence[NDArray[np.int64]]) -> dict[str, torch.Tensor]:
    """Returns a batch's `policy_versions`, int64 [n], and `pack_policy_versions`, int64 [packs], for n rollouts.

    Example:
        >>> versions_of_packs(np.array([7, 8]), [np.array([1]), np.array([], dtype=np.int64)])
        {'policy_versions': tensor([8]), 'pack_policy_versions': tensor([ 8, -1])}

    Args:
        versions: version of every rollout: int64 [R].
        packs: for each pack (bin) of the batch, the indices of its rollouts, all of one version: int64.
    """
    of_packs = [int(versions[members[0]]) if len(members) else NO_VERSION for members in packs]
    members = np.concatenate([np.zeros(0, dtype=np.int64), *packs])  # the first keeps int64 even without packs
    return {
        "policy_versions": torch.from_numpy(versions[members]),
        "pack_policy_versions": torch.tensor(of_packs, dtype=torch.int64),
    }
