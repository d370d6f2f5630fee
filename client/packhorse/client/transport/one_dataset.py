"""One dataset for each name: a client's first answer names a digest, and all later answers must have the same.

Owns the digests that a client is bound to; a mixture's may change, when a stage is appended, so answers that do not say
what the dataset is are compared by servers only. Servers compare the
digest in each request, since they may still have an earlier version. Leaves the hash of a run to `client/_run_id`, what
the workers of a rank share to `loading/workers/digests`, and what ranks share to `loading/_agreement`.
"""

from packhorse.client.errors import DigestMismatchError
from packhorse.wire import own_digest


class OneDataset:
    """The digests that a client is bound to, by the name of the dataset. Several threads may use it.

    Example:
        >>> bound = OneDataset()
        >>> bound.bind("corpus", "11-22-33-44+skip=5:6")
        >>> bound.digest_of("corpus"), bound.digest_of("books")
        ('11-22-33-44', '')
        >>> bound.bind("corpus", "11-22-33-55")
        Traceback (most recent call last):
            ...
        packhorse.client.errors.DigestMismatchError: dataset 'corpus' had digest 11-22-33-44 in an earlier answer, ...
    """

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}

    def digest_of(self, name: str) -> str:
        """Returns the digest that a dataset must have; empty if there was no answer about it yet."""
        return self._digests.get(name, "")

    def bind(self, name: str, digest: str, *, may_change: bool = False) -> None:
        """Binds the client to an answer's digest; if it is bound already, compares the two.

        The part of a digest that names skips does not count.

        Args:
            name: the dataset's name.
            digest: the digest in the answer.
            may_change: whether the digest may change, as a mixture's does when a stage is appended. Then only the
                server compares.

        Raises:
            DigestMismatchError: the client is bound to another digest.
        """
        own = own_digest(digest)
        bound = self._digests.setdefault(name, own)
        if bound != own and not may_change:
            raise DigestMismatchError(
                f"dataset {name!r} had digest {bound} in an earlier answer, and now has {own}: replicas serve "
                "different data under one name, or it was replaced; serve the same everywhere, or connect again",
                {"expected": bound, "actual": own, "dataset": name},
            )
