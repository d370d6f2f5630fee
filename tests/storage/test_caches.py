"""Caches stay within their limit and drop what was used longest ago."""

import pickle
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.storage import BoundedCache


@given(
    most=st.integers(1, 20),
    operations=st.lists(st.tuples(st.sampled_from(["find", "put", "drop"]), st.integers(0, 6)), max_size=60),
)
def test_it_does_what_a_plain_list_does(most: int, operations: list[tuple[str, int]]) -> None:
    cache: BoundedCache[int, int] = BoundedCache(most, size_of=lambda value: value)
    kept: list[int] = []  # the oldest first; key and value are k and k + 1
    for operation, key in operations:
        if operation == "drop":
            cache.drop(lambda each, key=key: each == key)
            kept = [each for each in kept if each != key]
            continue
        found = cache.find(key) if operation == "find" else cache.put(key, key + 1)
        assert found == (key + 1 if operation == "put" or key in kept else None)
        if operation == "put" or key in kept:
            kept = [*(each for each in kept if each != key), key]
        while len(kept) > 1 and sum(kept) + len(kept) > most:
            kept.pop(0)
        assert len(cache) == len(kept)


def test_the_first_of_two_values_is_kept() -> None:
    cache: BoundedCache[str, object] = BoundedCache(2)
    first = object()
    assert cache.get("a", lambda: first) is first
    assert cache.put("a", object()) is first
    assert cache.get("a", object) is first


def test_a_failure_keeps_nothing() -> None:
    cache: BoundedCache[str, int] = BoundedCache(2)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: 1 // 0)
    assert cache.find("a") is None


def test_many_threads_agree() -> None:
    cache: BoundedCache[int, object] = BoundedCache(1000)
    found: list[list[object]] = []

    def work() -> None:
        found.append([cache.get(key % 50, object) for key in range(2000)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(list(map(id, each)) == list(map(id, found[0])) for each in found)


def test_a_pickled_one_is_empty() -> None:
    cache: BoundedCache[str, bytes] = BoundedCache(10, size_of=len)
    cache.put("a", b"bytes")
    copy = pickle.loads(pickle.dumps(cache))
    assert (len(copy), copy.most_size) == (0, 10)
