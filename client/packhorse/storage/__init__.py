"""How both sides keep files: replaced as a whole, locked, read again when they change, and kept in bounded memory.

Only re-exports. It knows nothing of packing.
"""

from packhorse.storage.caches import BoundedCache
from packhorse.storage.locks import LockHeldError, hold_lock, try_lock
from packhorse.storage.replacing import (
    AtomicFiles,
    JobRecord,
    Records,
    read_record,
    refuse_existing,
    refuse_url,
    replace_bytes,
    sync,
    write_record,
)
from packhorse.storage.watched import Stamp, Watched, stamp_of

__all__ = [
    "AtomicFiles",
    "BoundedCache",
    "JobRecord",
    "LockHeldError",
    "Records",
    "Stamp",
    "Watched",
    "hold_lock",
    "read_record",
    "refuse_existing",
    "refuse_url",
    "replace_bytes",
    "stamp_of",
    "sync",
    "try_lock",
    "write_record",
]
