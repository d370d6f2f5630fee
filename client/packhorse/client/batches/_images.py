"""Images of a batch, loaded: which sequences have them, and their tensors and position ids.

Owns finding placeholder tokens, loading the images that they stand for, and checking that the two fit. Leaves what a
model takes to `row_format` (`Media`), known models to `packhorse.vision`, and the form in which a batch says where its
images lie to `media`. The user's function reads files.

Legend: m images, n sequences, T tokens of all rows end to end.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches._content import Content
from packhorse.client.batches.layout import PackLayout
from packhorse.client.batches.media import MediaError, MediaLayout
from packhorse.client.batches.row_format import Load, Media
from packhorse.topology.checks import quoted

_LOG = logging.getLogger("packhorse.client.batches.media")  # users filter the log by this name

_Tensors = Mapping[str, torch.Tensor]

_MODEL_POSITIONS = 3
"""Position ids per token of a model with `Media.positions`, besides those of text: frames, heights and widths."""


@dataclass(slots=True, kw_only=True)
class Images:
    """The images of a batch, loaded."""

    media: Media
    """How they were loaded, and what the model takes."""
    media_layout: MediaLayout
    """Where they lie."""
    tensors: dict[str, torch.Tensor]
    """Their tensors, in the order of placeholders; empty without images."""
    may_be_predicted: NDArray[np.bool_]
    """Whether each token is no placeholder, and its sequence's images did not fail: bool [T]."""

    def batch_keys(self, position_ids: torch.Tensor, layout: PackLayout) -> dict[str, Any]:
        """Returns the keys that the images add to a batch, or replace in it.

        Args:
            position_ids: the batch's position ids, as for text: int64 [B, L]. For a model with three position ids per
                token, the key "position_ids" becomes [4, B, L]: these, then the model's three.
            layout: the batch's layout.
        """
        keys = {"media": self.media_layout, **self.tensors}
        if self.media.positions is None:
            return keys
        # The model's three begin as copies of the text's, and keep them in sequences without images.
        stacked = position_ids.expand(1 + _MODEL_POSITIONS, -1, -1).clone()
        model_positions = stacked.numpy().reshape(1 + _MODEL_POSITIONS, -1)[1:]  # a view: [3, T]
        for sequence in np.unique(self.media_layout.sequences).tolist():
            start, room = int(layout.starts[sequence]), int(layout.rooms[sequence])
            is_own = self.media_layout.sequences == sequence  # whether an image is in this sequence: bool [m]
            model_positions[:, start : start + room] = self.media.positions(
                room, self.media_layout.starts[is_own] - start, self.media_layout.grids[is_own]
            )
        keys["position_ids"] = stacked
        return keys


def read_images(
    media: Media,
    input_ids: NDArray[np.int64],
    layout: PackLayout,
    content: Content,
    components: list[str] | None,
    pad_token_id: int,
) -> Images:
    """Loads the images of a batch, and compares them with its placeholders.

    If a sequence's images fail, or if it is redacted, its placeholders become padding tokens, which are not predicted.

    Args:
        media: how to load images, and what the model takes.
        input_ids: tokens of all rows end to end: int64 [T]; placeholders without an image are replaced.
        layout: the batch's layout.
        content: the batch's sequences.
        components: the name of each sequence's component; None without a mixture.
        pad_token_id: the token that replaces such a placeholder.

    Raises:
        MediaError: images fail and `media.on_error` is "fail"; or, with "mask" too, `load` lacks a component or
            returned ids that it was not asked for, or the tensors of sequences have shapes that cannot be joined.
    """
    is_placeholder = input_ids == media.image_token_id
    may_be_predicted = ~is_placeholder
    placeholders = np.flatnonzero(is_placeholder)  # indices among the T tokens
    sequences = np.searchsorted(layout.starts, placeholders, side="right") - 1  # index of each placeholder's sequence
    redacted = set(content.redacted_indices())
    holders = [sequence for sequence in np.unique(sequences).tolist() if sequence not in redacted]
    loaded = _load_all(media, holders, content.ids, components)

    fitting: list[_ImagesOfSequence] = []
    masked = []  # indices of the sequences whose images fail
    for sequence in holders:
        own = placeholders[sequences == sequence]
        try:
            fitting.append(_checked(media, sequence, loaded[sequence], own))
        except MediaError as error:
            failure = _explained(error, sequence, content, len(own))
            if media.on_error == "fail":
                raise failure from (error.__cause__ or error)  # the exception of the user's `load`, if there is one
            _LOG.warning("left out of the loss: %s", failure)
            masked.append(sequence)
            start = layout.starts[sequence]
            may_be_predicted[start : start + layout.lengths[sequence]] = False
    kept = [each.sequence for each in fitting]
    input_ids[placeholders[~np.isin(sequences, kept)]] = pad_token_id
    tensors = [each.tensors for each in fitting]
    joined = {key: _joined(media, key, tensors, content.ids[kept]) for key in media.keys if tensors}
    media_layout = _layout_of(fitting, content.ids, masked, list(joined))
    return Images(media=media, media_layout=media_layout, tensors=joined, may_be_predicted=may_be_predicted)


class _ImagesOfSequence(NamedTuple):
    """The images of one sequence, which fit its placeholders. Legend: I images."""

    sequence: int
    """Index of the sequence in the batch."""
    tensors: _Tensors
    """What the model takes for them, by key."""
    starts: NDArray[np.int64]
    """Index among the T tokens of each image's first placeholder: int64 [I]."""
    grids: NDArray[np.int64]
    """Frames, height and width of each image, in placeholders: int64 [I, 3]."""


def _layout_of(
    images: list[_ImagesOfSequence], ids: NDArray[np.int64], masked: list[int], keys: list[str]
) -> MediaLayout:
    """Returns where all images of a batch lie.

    Args:
        images: those of each sequence.
        ids: ids of all sequences of the batch: int64 [n].
        masked: indices of the sequences whose images failed.
        keys: the keys of the images' tensors.
    """
    indices = np.array([each.sequence for each in images], dtype=np.int64)
    sequences = np.repeat(indices, [len(each.starts) for each in images])
    # Each begins with an empty array, because NumPy does not concatenate none, as of a batch without images.
    grids = np.concatenate([np.empty((0, 3), np.int64), *(each.grids for each in images)])
    starts = np.concatenate([np.empty(0, np.int64), *(each.starts for each in images)])
    return MediaLayout(
        sequences=sequences,
        ids=ids[sequences],
        starts=starts,
        counts=grids.prod(1),
        grids=grids,
        masked_ids=ids[np.array(masked, dtype=np.int64)],
        keys=keys,
    )


def _load_all(
    media: Media, sequences: list[int], ids: NDArray[np.int64], components: list[str] | None
) -> dict[int, _Tensors | MediaError]:
    """Loads sequences with one call for each component; returns each one's tensors, or the error if it has none.

    Args:
        media: how to load images.
        sequences: indices of the sequences in the batch.
        ids: ids of all sequences of the batch: int64 [n].
        components: the name of each sequence's component; None without a mixture.
    """
    by_component: dict[str | None, list[int]] = {}
    for sequence in sequences:
        by_component.setdefault(None if components is None else components[sequence], []).append(sequence)
    loaded: dict[int, _Tensors | MediaError] = {}  # by a sequence's index in the batch
    for name, of_component in by_component.items():
        load = media.load
        if isinstance(load, Mapping):
            assert name is not None
            if name not in load:
                raise MediaError(
                    f"sequence {ids[of_component[0]]} of component {name!r} holds the image token "
                    f"{media.image_token_id}, but load of media lacks that component; add it"
                )
            load = load[name]
        distinct_ids = list(dict.fromkeys(ids[of_component].tolist()))  # a split sequence's pieces have one id
        by_id = _load(load, distinct_ids)
        loaded |= {sequence: by_id[int(ids[sequence])] for sequence in of_component}
    return loaded


def _load(load: Load, ids: list[int]) -> dict[int, _Tensors | MediaError]:
    """Loads some sequences together; if that raises, loads each by itself, to learn which ones fail."""
    try:
        answer = load(ids)
    except Exception as error:  # whatever a function of the user's may raise
        if len(ids) > 1:
            return {sequence_id: _load(load, [sequence_id])[sequence_id] for sequence_id in ids}
        failure = MediaError(f"load raised {type(error).__name__}: {error}")
        failure.__cause__ = error
        return {ids[0]: failure}
    if not isinstance(answer, Mapping) or not set(answer) <= set(ids):
        others = sorted(set(answer) - set(ids), key=str) if isinstance(answer, Mapping) else answer
        raise MediaError(
            f"load of media was asked for the sequences {quoted(ids)} and returned {quoted(others)}; it must "
            "return {id: tensors} for the ids that it is given"
        )
    return {sequence_id: answer.get(sequence_id, MediaError("load returned nothing for it")) for sequence_id in ids}


def _checked(
    media: Media, sequence: int, loaded: _Tensors | MediaError, placeholders: NDArray[np.int64]
) -> _ImagesOfSequence:
    """Returns a sequence's images, checked against its placeholders.

    Args:
        media: what the model takes.
        sequence: index of the sequence in the batch.
        loaded: the sequence's tensors, or why they could not be loaded.
        placeholders: index among the T tokens of each of the sequence's placeholders.

    Raises:
        MediaError: they could not be loaded, or do not fit.
    """
    if isinstance(loaded, MediaError):
        raise loaded
    if missing := [key for key in media.keys if key not in loaded]:
        raise MediaError(f"load returned no {missing[0]!r}, but {', '.join(map(str, loaded)) or 'nothing'}")
    try:
        tensors = {key: torch.as_tensor(loaded[key]) for key in media.keys}
        grids = np.asarray(media.grids(tensors), dtype=np.int64).reshape(-1, 3)
    except Exception as error:  # whatever `grids` raises for tensors of another form
        raise MediaError(f"what load returned is not as the model takes it: {error}") from error
    counts = grids.prod(1)  # placeholders of each image
    if counts.sum() != len(placeholders) or (counts < 1).any():
        raise MediaError(
            f"it holds {len(placeholders)} image tokens ({media.image_token_id}), but its {len(grids)} images need "
            f"{counts.sum()}"
        )
    firsts = np.cumsum(counts) - counts  # in `placeholders`; counts [2, 3] -> images begin at its entries 0 and 2
    starts, lasts = placeholders[firsts], placeholders[firsts + counts - 1]
    is_apart = lasts - starts + 1 != counts
    if is_apart.any():
        image = int(is_apart.argmax())
        raise MediaError(
            f"other tokens lie between the {counts[image]} image tokens of its image {image}, or its images come in "
            "another order"
        )
    return _ImagesOfSequence(sequence, tensors, starts, grids)


def _explained(error: MediaError, sequence: int, content: Content, num_placeholders: int) -> MediaError:
    """Returns the error with the sequence's id, and advice."""
    way_out = (
        "it was cut, and its images with it: prepare the dataset with over_length='drop' or a larger max_seq_len"
        if num_placeholders and content.is_cut(sequence)
        else "mend it and resume after the last batch's cursor"
    )
    return MediaError(f"sequence {content.ids[sequence]}: {error}; {way_out}, or leave it out with on_error='mask'")


def _joined(media: Media, key: str, loaded: list[_Tensors], ids: NDArray[np.int64]) -> torch.Tensor:
    """Joins one key's tensors of all sequences, padded with zeros to one shape if the model allows that.

    Args:
        media: what the model takes.
        key: the tensors' key.
        loaded: each sequence's tensors.
        ids: the sequences' ids, for an error.
    """
    tensors = [each[key] for each in loaded]
    others = [i for i, tensor in enumerate(tensors) if tensor.shape[1:] != tensors[0].shape[1:]]
    if others and not media.pads:
        raise MediaError(
            f"{key} of sequence {ids[0]} has the shape {list(tensors[0].shape)}, and of sequence {ids[others[0]]} "
            f"{list(tensors[others[0]].shape)}: images of one batch may differ only in the first size; load all with "
            "one processor"
        )
    if others:
        shape = np.max([tensor.shape[1:] for tensor in tensors], axis=0).tolist()
        padded = [tensor.new_zeros(len(tensor), *shape) for tensor in tensors]
        for whole, tensor in zip(padded, tensors, strict=True):
            whole[tuple(slice(size) for size in tensor.shape)] = tensor
        tensors = padded
    return torch.cat(tensors)
