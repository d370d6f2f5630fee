"""The corpora of a server that sends tokens. A corpus is the tokens of one dataset or mixture.

Owns finding and opening corpora, and withdrawing one whose tokens do not fit the plan, while the dataset's ids are
still served. Leaves reading the tokens of bins to `corpus`, and messages to `methods`.
"""

import logging
import os
import threading
import time
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from packhorse.dataset import MixtureDataset, PreparedDataset
from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.object_store import is_url
from packhorse.parameters import parameter
from packhorse.server.base.faults import ServiceError
from packhorse.server.datasets.corpus import Corpus
from packhorse.server.datasets.protocols import Dataset
from packhorse.tokens import MixtureSource, TokenSource, as_token_source
from packhorse.tokens.loss_mask import loss_mask_of
from packhorse.tokens.recorded import check_tokens, open_recorded, recorded_path
from packhorse.v1 import packing_pb2 as pb

_LOG = logging.getLogger(__name__)

TRY_AGAIN_SECONDS = 60.0
"""Time after which a corpus that is not served is opened again, if somebody asks for it."""

CHECKED_BINS = 4096
"""Bins whose lengths are compared in one go by the check of a whole corpus."""

AUTO = "auto"
"""Value of `--tokens` with which each dataset has the tokens that its manifest names."""

_OPEN_AT_ONCE = (".idx", ".bin")
"""Suffixes of files that open at once, because they are mapped. Tables must be decoded, and stores take a network."""


@dataclass
class _Attempt:
    """The result of trying to open a corpus."""

    corpus: Corpus | None
    why: str = ""
    """Why there is no corpus, for clients."""
    again_at: float = 0.0
    """Time, by `time.monotonic`, from which on opening is tried again if there is no corpus."""


class Corpora:
    """The corpora of datasets, each opened when it is first asked for.

    Args:
        given: dataset → path or URL of its tokens.
        of_manifests: whether other datasets have the tokens that their manifests name.
    """

    def __init__(self, given: Mapping[str, str] | None = None, *, of_manifests: bool = False) -> None:
        self._given = dict(given or {})
        self._of_manifests = of_manifests
        self._lock = threading.Lock()
        # Keyed by dataset, not by digest: two datasets of one digest may have different tokens.
        self._locks: WeakKeyDictionary[Dataset, threading.Lock] = WeakKeyDictionary()
        self._attempts: WeakKeyDictionary[Dataset, _Attempt] = WeakKeyDictionary()
        self._wrong: dict[str, str] = {}  # dataset → why its tokens are not served

    @classmethod
    def parse(cls, options: Iterable[str]) -> "Corpora":
        """Returns the corpora of `--tokens`: `auto`, NAME=PATH, or a TOML file whose table `tokens` has them.

        Raises:
            ValueError: an option is none of these, or names a dataset twice.
        """
        given: dict[str, str] = {}
        of_manifests = False
        for option in options:
            if option == AUTO:
                of_manifests = True
                continue
            pairs = _table(option).items() if option.endswith(".toml") else [_pair(option)]
            for name, path in pairs:
                if name in given:
                    raise ValueError(parameter("tokens") + f" names the dataset {name} twice")
                given[name] = path
        return cls(given, of_manifests=of_manifests)

    def of(self, dataset: Dataset) -> Corpus:
        """Returns the corpus of a dataset or mixture.

        Raises:
            ServiceError: this server does not know where its tokens are, cannot open them, or has withdrawn them.
        """
        with self._lock:
            lock = self._locks.setdefault(dataset, threading.Lock())
        with lock:
            attempt = self._attempts.get(dataset)
            if attempt is None or (attempt.corpus is None and time.monotonic() >= attempt.again_at):
                attempt = self._attempts[dataset] = self._try_to_open(dataset)
        if attempt.corpus is None:
            raise _not_served(dataset.name, attempt.why)
        return attempt.corpus

    def facts(self, dataset: Dataset) -> dict[str, Any]:
        """Returns the fields of a dataset's message that are about tokens: name → value.

        A corpus that takes long to open is not opened for this. Until somebody asks for its tokens, the message does
        not say whether there is a loss mask.
        """
        paths = [self._path_of(each) for each in _parts(dataset)]
        if not all(paths):
            return {}
        if dataset not in self._attempts and not all(map(_opens_at_once, paths)):
            return {"has_tokens": True}
        try:
            corpus = self.of(dataset)
        except ServiceError:
            return {}
        return {"has_tokens": True, "has_loss_mask": corpus.has_loss_mask, "token_dtype": corpus.dtype}

    @property
    def are_asked_for(self) -> bool:
        """Whether this server sends any tokens."""
        return self._of_manifests or bool(self._given)

    def troubles(self) -> dict[tuple[str, str], str]:
        """Returns what is wrong with corpora: ("corpus", dataset) → why."""
        return {("corpus", name): why for name, why in list(self._wrong.items())}

    @contextmanager
    def reading(self, dataset: Dataset) -> Iterator[None]:
        """Turns errors of the code inside the `with`, which reads tokens, into a ServiceError.

        After a ValueError the corpus is withdrawn: its tokens do not fit the plan. After an OSError it is not, because
        reading may succeed later.

        Raises:
            ServiceError: the tokens cannot be read, or do not fit the plan.
        """
        try:
            yield
        except ServiceError:
            raise
        except OSError as error:
            _LOG.error("the tokens of %s cannot be read: %s", dataset.name, error)
            raise _not_served(
                dataset.name, f"they cannot be read now ({error.strerror or type(error).__name__})"
            ) from None
        except ValueError as error:
            why = _without_paths(str(error))
            self._withdraw(dataset, str(error), why)
            raise _not_served(dataset.name, why) from None

    def check_all(self, datasets: Iterable[Dataset]) -> None:
        """Opens the corpora of datasets, and compares all lengths if that needs no reading of tokens. Takes long."""
        for dataset in datasets:
            if not all(map(self._path_of, _parts(dataset))):
                continue
            with suppress(ServiceError), self.reading(dataset):  # the log has the error by then
                corpus = self.of(dataset)
                if not corpus.knows_lengths:
                    continue
                epoch = dataset.epoch(0, 0)
                for first in range(0, epoch.num_bins, CHECKED_BINS):
                    corpus.check_lengths(epoch.bins(np.arange(first, min(first + CHECKED_BINS, epoch.num_bins))))

    def _try_to_open(self, dataset: Dataset) -> _Attempt:
        """Opens a corpus; if that fails, logs why, and notes it for clients."""
        try:
            corpus = self._open(dataset)
        except (OSError, ValueError, ImportError) as error:
            _LOG.error("the tokens of %s are not served: %s", dataset.name, error)
            why = _without_paths(str(error)) if isinstance(error, ValueError) else "they cannot be opened"
            return self._failed_attempt(dataset, why)
        self._wrong.pop(dataset.name, None)
        return _Attempt(corpus)

    def _open(self, dataset: Dataset) -> Corpus:
        """Returns a new corpus of a dataset, or of a mixture, whose components' sources it joins.

        Raises:
            ValueError: this server does not know where tokens are, or they are not those of the plan.
            OSError: they cannot be opened.
        """
        parts = _parts(dataset)
        if missing := [each.name for each in parts if not self._path_of(each)]:
            raise ValueError(
                "this server was not told where its tokens are"
                + (f" (of {', '.join(missing)})" if isinstance(dataset, MixtureDataset) else "")
                + "; start it with `packhorse serve --tokens`, or give the loader tokens="
            )
        sources = {each.name: self._open_source(each) for each in parts}
        files: dict[str, FileStamp] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they advise whoever trains, about tokens that are in the loss
            if isinstance(dataset, MixtureDataset):
                mixture = MixtureSource(sources)
                loss_mask = loss_mask_of(mixture)
                components = [_ComponentFacts(each) for each in parts]
                tokens_by_id: TokenSource = mixture.for_components(components)  # type: ignore[arg-type]
                mask_by_id = None if loss_mask is None else loss_mask.for_components(components)  # type: ignore[arg-type]
            else:
                source = sources[dataset.name]
                loss_mask = loss_mask_of(source)
                id_column = dataset.manifest.id_column or ""
                tokens_by_id = source.for_ids(id_column)
                mask_by_id = None if loss_mask is None else loss_mask.for_ids(id_column)
        mask_sources: Iterable[TokenSource] = () if loss_mask is None else (loss_mask,)
        if isinstance(loss_mask, MixtureSource):  # which maps no file itself
            mask_sources = loss_mask.sources.values()
        for each in (*sources.values(), *mask_sources):
            files |= {path: FileStamp.of(path) for path in each.mapped_files}
        return Corpus(dataset, tokens_by_id, mask_by_id, files)

    def _open_source(self, dataset: PreparedDataset) -> TokenSource:
        """Opens the source of a dataset's tokens, and compares it with the manifest's fingerprint if there is one."""
        inputs, path = dataset.manifest.inputs, self._path_of(dataset)
        if inputs is None or inputs.tokens is None:
            return as_token_source(path)
        is_given = dataset.name in self._given
        source = as_token_source(path) if is_given else open_recorded(path, asdict(inputs.tokens), inputs.rows)
        is_checked = not is_given and source.knows_lengths  # by `open_recorded`, which leaves out checks of seconds
        if not is_checked:
            check_tokens(source, inputs.tokens.fingerprint, inputs.rows)
        return source

    def _path_of(self, dataset: PreparedDataset) -> str:
        """Returns the path or URL of a dataset's tokens; empty if neither --tokens nor the manifest gives one."""
        if dataset.name in self._given:
            return self._given[dataset.name]
        inputs = dataset.manifest.inputs
        folder = getattr(dataset, "path", None)  # a dataset in memory has none
        if not self._of_manifests or folder is None or inputs is None or inputs.tokens is None:
            return ""
        return recorded_path(folder, asdict(inputs.tokens))

    def _withdraw(self, dataset: Dataset, for_log: str, why: str) -> None:
        """Ends serving a dataset's tokens for TRY_AGAIN_SECONDS; `why` is for clients."""
        _LOG.error("withdrawing the tokens of %s, not its ids: %s", dataset.name, for_log)
        self._attempts[dataset] = self._failed_attempt(dataset, why)

    def _failed_attempt(self, dataset: Dataset, why: str) -> _Attempt:
        """Notes why a corpus is not served, and when it is tried again."""
        if all(map(self._path_of, _parts(dataset))):  # else nobody wanted to serve them
            self._wrong[dataset.name] = why
        return _Attempt(None, why, time.monotonic() + TRY_AGAIN_SECONDS)


class _ComponentFacts:
    """The facts of a mixture's component that `MixtureSource.for_components` reads."""

    def __init__(self, dataset: PreparedDataset) -> None:
        self.name = dataset.name
        self.id_column = dataset.manifest.id_column or ""


def _parts(dataset: Dataset) -> list[PreparedDataset]:
    """Returns the components of a mixture, or the dataset itself."""
    return list(dataset.datasets) if isinstance(dataset, MixtureDataset) else [dataset]  # type: ignore[list-item]


def _pair(option: str) -> tuple[str, str]:
    """Reads NAME=PATH; raises a ValueError if the option is something else."""
    name, _, path = option.partition("=")
    if not name or not path:
        raise ValueError(
            parameter("tokens")
            + f" must be NAME=PATH, a .toml file with a table [tokens], or {AUTO} for those that manifests name, "
            f"got {option[:80]!r}"
        )
    return name, path


def _table(path: str) -> dict[str, str]:
    """Returns the table [tokens] of a TOML file, dataset → path or URL; raises a ValueError if it has none."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("tokens")
    except (OSError, ValueError) as error:
        raise ValueError(parameter("tokens") + f" {path} cannot be read: {error}") from None
    if not isinstance(table, dict) or not all(isinstance(each, str) for each in table.values()):
        raise ValueError(
            parameter("tokens") + f' {path} must have a table [tokens] of lines such as corpus = "/data/corpus.idx"'
        )
    return table


def _opens_at_once(path: str) -> bool:
    return path.endswith(_OPEN_AT_ONCE) and not is_url(path)


def _without_paths(text: str) -> str:
    """Returns an error's message as clients may read it; one with a path of this machine is replaced."""
    return text if os.sep not in text else "they are not those of the plan; the server's log has the details"


def _not_served(name: str, why: str) -> ServiceError:
    return ServiceError(
        pb.ERROR_REASON_TOKENS_NOT_SERVED, f"the tokens of {name!r} are not served: {why}", {"dataset": name}
    )
