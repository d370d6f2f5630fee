"""Object stores by URL: asking them, finding objects, and reading ranges of one object, with deadlines and retries.

Only re-exports. `urls` has what a URL is, `store` how one is asked, `stored_object` how an object is read.
"""

from packhorse.formats.object_store.finding import find_objects
from packhorse.formats.object_store.parallel_requests import for_each
from packhorse.formats.object_store.store import Store, StoreOptions, TokenStoreError
from packhorse.formats.object_store.stored_object import StoredObject
from packhorse.formats.object_store.urls import is_url, without_secrets

__all__ = [
    "Store",
    "StoreOptions",
    "StoredObject",
    "TokenStoreError",
    "find_objects",
    "for_each",
    "is_url",
    "without_secrets",
]
