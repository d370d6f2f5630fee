"""Tokens that a server sends with bins, decoded as a token source of one block.

Owns their decoding and checks, and the stand-in `TokensFromServer` for "the tokens will come with the bins". Leaves
asking for them to `stream`, and reading token files to `packhorse.tokens`.
"""

from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from packhorse.client.error_texts import too_old
from packhorse.client.errors import DamagedAnswerError
from packhorse.tokens import TokenSource, TokenSourceError
from packhorse.tokens.base import Gather, write_end_to_end
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import tokens_checksum

_DTYPES: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
"""Bytes of a token in a message → dtype."""


class TokensFromServer(TokenSource):
    """The token source, or loss mask, of a loader whose tokens come with each block. It cannot read by itself.

    A batch takes the tokens of its block (`BinBlock.tokens`, a `SentTokens`) in its stead.
    """

    @property
    def where(self) -> str:
        """The name of the source, for messages."""
        return "the server's tokens"

    def __repr__(self) -> str:
        return f"<{self.where}>"

    @property
    def knows_lengths(self) -> bool:
        """True: a block comes with its tokens."""
        return True

    @property
    def may_be_out_of_range(self) -> bool:
        """False: the server checked them."""
        return False

    def for_components(self, components: object) -> Self:
        """Returns itself: the server knows each component's corpus."""
        return self

    def read(self, sequence_id: int, start: int = 0, length: int | None = None) -> NoReturn:
        """Raises a TokenSourceError: tokens come only with bins."""
        raise TokenSourceError(
            f"sequence {sequence_id}: the server sends tokens with bins, and not by id; give tokens= to read single "
            "sequences"
        )


class SentTokens(TokensFromServer):
    """A block's tokens, or its loss mask: a value for each token of each entry (sequence or piece) of the block.

    Legend: S entries.

    Args:
        values: the values of all entries: integers.
        starts: index in `values` at which each entry begins: int64 [S].
        sizes: number of values of each entry: int64 [S].
        first_tokens: number in its whole sequence of each entry's first value: int64 [S].
        whole_sizes: tokens of each entry's whole sequence: int64 [S].
    """

    def __init__(
        self,
        values: NDArray[Any],
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        first_tokens: NDArray[np.int64],
        whole_sizes: NDArray[np.int64],
    ) -> None:
        self._values = values
        self._starts = starts
        self._sizes = sizes
        self._first_tokens = first_tokens
        self._whole_sizes = whole_sizes

    def __len__(self) -> int:
        """Number of entries."""
        return len(self._starts)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of values of each entry: int64 [S]."""
        return self._sizes

    @property
    def first_tokens(self) -> NDArray[np.int64]:
        """Number in its whole sequence of each entry's first value: int64 [S]."""
        return self._first_tokens

    def by_entry(self) -> list[NDArray[Any]]:
        """Returns a view of each entry's values: a list of S arrays."""
        ends = (self._starts + self._sizes).tolist()
        return [self._values[start:end] for start, end in zip(self._starts.tolist(), ends, strict=True)]

    def entries(self, first: int, last: int) -> "SentTokens":
        """Returns the entries [first, last), as views."""
        chosen = slice(first, last)
        return SentTokens(
            self._values,
            starts=self._starts[chosen],
            sizes=self._sizes[chosen],
            first_tokens=self._first_tokens[chosen],
            whole_sizes=self._whole_sizes[chosen],
        )

    def lengths(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the lengths of the entries' whole sequences: int64 [S]. `ids` are ignored, as in `gather_from`."""
        return self._whole_sizes

    def gather_from(
        self,
        ids: NDArray[np.int64],
        lengths: NDArray[np.integer],
        *,
        first_tokens: NDArray[np.int64] | None = None,
        truncate: bool = False,
    ) -> Gather:
        """Returns a function that writes the values of entries [first, last); see `TokenSource.gather_from`.

        `ids` are ignored: the caller must ask for all entries of the block, in their order. So is `truncate`: an entry
        may always have more values than are asked for.
        """
        # [S]: how many of an entry's values come before those that are asked for.
        offsets = (0 if first_tokens is None else first_tokens) - self._first_tokens
        if len(lengths) != len(self) or (offsets < 0).any() or (offsets + lengths > self._sizes).any():
            raise DamagedAnswerError("the tokens that came with the bins are fewer than their rooms hold")
        begins = self._starts + offsets
        ends = begins + lengths
        is_end_to_end = bool((begins[1:] == ends[:-1]).all())

        def gather(first: int, last: int, out: NDArray[np.integer], out_starts: NDArray[np.int64]) -> None:
            if first == last:
                return
            if is_end_to_end:
                values = self._values[begins[first] : ends[last - 1]]
            else:
                ranges = zip(begins[first:last].tolist(), ends[first:last].tolist(), strict=True)
                values = np.concatenate([self._values[begin:end] for begin, end in ranges])
            write_end_to_end(values, lengths[first:last], out, out_starts)

        return gather


def tokens_of_answer(answer: pb.StreamBlock | pb.GetBinsResponse, *, is_wanted: bool) -> pb.Tokens | None:
    """Returns the tokens of an answer; None if none are wanted.

    Raises:
        VersionMismatchError: they are wanted, but the server is too old to send tokens.
    """
    if is_wanted and not answer.HasField("tokens"):
        raise too_old("tokens in a stream (give the loader tokens= for now)")
    return answer.tokens if is_wanted else None


def joined_tokens(blocks: list[SentTokens]) -> SentTokens:
    """Lays the entries of several blocks end to end."""
    num_values = np.array([len(block._values) for block in blocks])
    num_before = np.cumsum(num_values) - num_values  # [10, 20, 5] values -> [0, 10, 30] before those of each block
    return SentTokens(
        np.concatenate([block._values for block in blocks]),
        starts=np.concatenate([block._starts + before for block, before in zip(blocks, num_before, strict=True)]),
        sizes=np.concatenate([block._sizes for block in blocks]),
        first_tokens=np.concatenate([block._first_tokens for block in blocks]),
        whole_sizes=np.concatenate([block._whole_sizes for block in blocks]),
    )


def decode_tokens(
    message: pb.Tokens, bins_checksum: int, lengths: NDArray[np.int32], first_tokens: NDArray[np.int64] | None
) -> tuple[SentTokens, SentTokens | None]:
    """Returns (tokens, loss mask) of a block's entries; the loss mask is None if every token is to be predicted.

    Args:
        message: the message of the tokens.
        bins_checksum: the checksum of the bins that the tokens came with.
        lengths: length of each entry in the bins: int32 [S].
        first_tokens: number of each entry's first token in its sequence: int64 [S]; None if all begin at token 0.

    Raises:
        DamagedAnswerError: the checksum does not match, or the arrays do not fit each other.
    """
    if tokens_checksum(message, bins_checksum) != message.checksum:
        raise DamagedAnswerError("the tokens do not match their checksum: bytes changed on the way")
    dtype = _DTYPES.get(message.token_bytes)
    if dtype is None:
        raise DamagedAnswerError(f"the tokens have {message.token_bytes} bytes each, which this client does not know")
    sizes = lengths.astype(np.int64)
    whole_sizes = sizes
    if message.sizes or message.whole_sizes:  # else each entry is a whole sequence that fills its room
        sizes = np.frombuffer(message.sizes, "<u4").astype(np.int64)
        whole_sizes = np.frombuffer(message.whole_sizes, "<i8").astype(np.int64, copy=False)
    num_tokens = int(sizes.sum())
    mask_bytes = -(-num_tokens // 8)  # a bit for each token, rounded up
    if (
        len(sizes) != len(lengths)
        or len(whole_sizes) != len(lengths)
        or len(message.tokens) != num_tokens * dtype.itemsize
        or len(message.loss_mask) not in (0, mask_bytes)
    ):
        raise DamagedAnswerError("the tokens do not fit the bins that they came with")
    if first_tokens is None or message.has_prefixes:  # with its prefix, an entry's values begin at token 0
        first_tokens = np.zeros_like(sizes)
    starts = np.cumsum(sizes) - sizes
    tokens = SentTokens(np.frombuffer(message.tokens, dtype), starts, sizes, first_tokens, whole_sizes)
    if not message.loss_mask:
        return tokens, None
    bits = np.unpackbits(np.frombuffer(message.loss_mask, np.uint8), count=num_tokens, bitorder="little")
    return tokens, SentTokens(bits, starts, sizes, first_tokens, whole_sizes)
