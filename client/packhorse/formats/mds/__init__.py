"""MDS shards (MosaicML Streaming, version 2): the folder with its index, and the arrays in its cells.

Only re-exports. `index` has which shards there are, `shards` their layout, `arrays` what a cell of an array holds.
"""

from packhorse.formats.mds.arrays import array_type, num_integers, read_array
from packhorse.formats.mds.index import INDEX
from packhorse.formats.mds.shards import INTEGERS, MdsShards, head_bytes

__all__ = ["INDEX", "INTEGERS", "MdsShards", "array_type", "head_bytes", "num_integers", "read_array"]
