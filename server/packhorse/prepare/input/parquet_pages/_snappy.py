"""Snappy's raw format: decompressing only the beginning of a block, which pyarrow cannot do.

Owns the compiled loop, which checks every size and offset that it reads.
"""

from typing import Any

import numpy as np

from packhorse.compiling import kernel


@kernel
def unpack_snappy(data: Any, out: Any) -> int:
    """Decompresses the beginning of a raw Snappy block into `out`; returns the bytes written, or -1 if it is damaged.

    A block is the size of the whole output, seven bits in each byte, then elements with a tag in their first byte: a
    literal, or a copy of earlier output.

    Args:
        data: uint8, the whole block.
        out: uint8, filled as far as the block reaches.
    """
    at: Any = 0
    while at < len(data) and data[at] >= 128:  # passes over the size, which the caller knows
        at += 1
    at += 1
    done: Any = 0
    while at < len(data) and done < len(out):
        tag: Any = np.int64(data[at])
        at += 1
        if tag & 3 == 0:  # a literal
            size: Any = tag >> 2
            if size >= 60:  # the size is in the next one to four bytes
                num_bytes: Any = size - 59
                if at + num_bytes > len(data):
                    return -1
                size = 0
                for i in range(num_bytes):
                    size |= np.int64(data[at + i]) << (8 * i)
                at += num_bytes
            size += 1
            if at + size > len(data):
                return -1
            for i in range(min(size, len(out) - done)):
                out[done + i] = data[at + i]
            at += size
        else:  # a copy of `size` bytes from `offset` bytes back
            kind = tag & 3
            num_bytes = 1 if kind == 1 else 2 if kind == 2 else 4
            if at + num_bytes > len(data):
                return -1
            offset: Any = 0
            for i in range(num_bytes):
                offset |= np.int64(data[at + i]) << (8 * i)
            at += num_bytes
            size = (tag >> 2) + 1
            if kind == 1:  # the tag has three bits of the size, and above them the highest three of the offset
                size = ((tag >> 2) & 7) + 4
                offset |= (tag >> 5) << 8
            if offset == 0 or offset > done:
                return -1
            for i in range(min(size, len(out) - done)):
                out[done + i] = out[done - offset + i]  # byte by byte: the copy may overlap what it is copied from
        done = min(done + size, len(out))
    return done
