"""URLs of objects in stores: what is one, and how messages show it without its secrets."""

import re
from typing import TypeGuard

_CHAINED = re.compile(r"::(?=[A-Za-z][\w+.-]*://)")
"""Separator of the URLs in one of fsspec's chains, such as simplecache::s3://bucket/x."""
_QUERY = re.compile(r"[?#]")
"""Beginning of a web URL's query or fragment."""
_NAMED_QUERY = re.compile(r"\?[\w.~%-]+=")
"""Beginning of another URL's query: a "?" before a name and "="; any other "?" may be part of a pattern."""
_URL = re.compile(r"[A-Za-z][\w+.-]*://[^\s'\"<>]+")
"""A URL within a text."""


def is_url(path: object) -> TypeGuard[str]:
    """Returns whether `path` is a URL of an object, a folder or a pattern in a store; file:// URLs are not.

    Example:
        >>> is_url("s3://corpus/x.parquet"), is_url("x.parquet"), is_url("file:///data/x.parquet")
        (True, False, False)
    """
    return isinstance(path, str) and "://" in path and not path.startswith("file://")


def without_secrets(url: str) -> str:
    """Returns a URL without user, password and query, for messages and manifests: a query may hold a signature.

    A path stays as it is, and so do a "?" in a store's pattern and a container before "@".

    Example:
        >>> without_secrets("https://me:secret@host/corpus.idx?X-Amz-Signature=1f")
        'https://host/corpus.idx'
        >>> without_secrets("s3://corpus/part-?.parquet")
        's3://corpus/part-?.parquet'
    """
    return "::".join(map(_without_its_secrets, _CHAINED.split(url))) if is_url(url) else url


def text_without_secrets(text: str) -> str:
    """Returns a text with every URL in it as `without_secrets` shows it."""
    return _URL.sub(lambda found: without_secrets(found[0]), text)


def _without_its_secrets(url: str) -> str:
    """Returns one URL of a chain without its secrets; see `without_secrets`."""
    scheme, mark, rest = url.partition("://")
    # Of these schemes, "@" always ends a user, and "?" always begins a query.
    is_web = scheme in ("http", "https", "ftp", "sftp", "hdfs", "webhdfs")
    query = (_QUERY if is_web else _NAMED_QUERY).search(rest)
    host, slash, path = rest[: query.start() if query else None].partition("/")
    user, _, bare = host.rpartition("@")
    if is_web or ":" in user:  # without a password, what stands before "@" may be a container: abfs://container@account
        host = bare
    return f"{scheme}{mark}{host}{slash}{path}"
