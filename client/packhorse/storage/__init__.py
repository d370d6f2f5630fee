"""How both sides keep files: replaced as a whole, locked, read without waiting and again when they change, and cached.

Only re-exports. This package knows nothing of packing.
"""

from packhorse.storage.caches import BoundedCache
from packhorse.storage.in_time import look_at, never_wait_for_files, within
from packhorse.storage.job_record import JobRecord
from packhorse.storage.locks import LockHeldError, hold_lock, try_lock
from packhorse.storage.outputs import refuse_existing, refuse_url
from packhorse.storage.plain_files import check_plain, open_plain, read_plain, read_text
from packhorse.storage.records import Records, read_record, write_record
from packhorse.storage.replacing import AtomicFiles, replace_bytes, sync
from packhorse.storage.shared_set import SharedSet
from packhorse.storage.watched import Stamp, Watched, stamp_of

__all__ = [
    "AtomicFiles",
    "BoundedCache",
    "JobRecord",
    "LockHeldError",
    "Records",
    "SharedSet",
    "Stamp",
    "Watched",
    "check_plain",
    "hold_lock",
    "look_at",
    "never_wait_for_files",
    "open_plain",
    "read_plain",
    "read_record",
    "read_text",
    "refuse_existing",
    "refuse_url",
    "replace_bytes",
    "stamp_of",
    "sync",
    "try_lock",
    "within",
    "write_record",
]
