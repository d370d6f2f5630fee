"""Sources in other processes: DataLoader workers, forked and begun anew, after they were used in the parent."""

import operator
import pickle

import numpy as np
import pytest
from torch.utils.data import DataLoader

from packhorse.client.loading.workers.preemption import protected_fork_server

PICKLED_BY_PATH = [
    "megatron", "flat", "arrow", "arrow_stream", "arrow_files", "arrow_ids", "hf_saved", "parquet", "parquet_files",
    "mds", "mds_any", "mds_json",
]  # fmt: skip


def test_forked_workers(sources, sequences, gather):
    for source in sources.values():
        assert source.read(4).tolist() == sequences[4].tolist()  # maps and caches are there when workers are forked

    def gathered(source):
        ids = [4, 0, 3]
        return [source.lengths(np.array(ids)).tolist(), gather(source, ids, [len(sequences[i]) for i in ids])]

    loader = DataLoader(
        list(sources.values()) * 2,
        batch_size=None,
        collate_fn=gathered,
        num_workers=2,
        multiprocessing_context="fork",
        timeout=60,
    )
    expected = [[300, 5, 3], [sequences[i].tolist() for i in (4, 0, 3)]]
    assert list(loader) == [expected] * 2 * len(sources)


def test_workers_that_begin_anew(sources, sequences):
    # What the child is handed must be importable there, and this module is not.
    fresh = [source for kind, source in sources.items() if kind != "own"]
    for source in fresh:
        source.read(4)
    loader = DataLoader(
        fresh,
        batch_size=None,
        collate_fn=operator.methodcaller("read", 4, 3),
        num_workers=1,
        multiprocessing_context=protected_fork_server(),
        timeout=120,
    )
    assert [tokens.tolist() for tokens in loader] == [sequences[4][3:].tolist()] * len(fresh)


@pytest.mark.parametrize("kind", PICKLED_BY_PATH)
def test_pickled_source_carries_no_tokens(sources, sequences, gather, kind):
    source = sources[kind]
    source.lengths(np.array([4]))  # maps, caches and what is held for the next gather are there
    data = pickle.dumps(source)
    for dtype in (np.uint16, np.int32, np.int64):
        assert sequences[4].astype(dtype).tobytes()[:64] not in data
    assert gather(pickle.loads(data), [4], [300]) == [sequences[4].tolist()]
