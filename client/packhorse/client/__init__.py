"""The client: bins from a server, or from a folder, as blocks, tensors and masks.

    from packhorse.client import create_packed_dataloader

    loader = create_packed_dataloader("127.0.0.1:50051", "corpus", "corpus.idx", batch_size=8, seed=1)
    for epoch in loader.epochs(2):
        for batch in loader:
            ...

Everything that a trainer needs is imported from here, by name. What works with tensors needs torch and is loaded when
it is first asked for; connecting, streaming and locating do without, and so does `import *`, which leaves it out.

Loading     create_packed_dataloader, PackedDataLoader, PackedDataset, DevicePrefetcher,
            PackedBins for loaders and samplers of other people's making
Stacks      PackedData, PackedDataModule, sees_other_sequences; trainers for Hugging Face, TRL and torchdata are below
            packhorse.client.trainers
Service     connect, Client, DatasetInfo, Component, Stage, BinStream, StreamHeader, BinBlock, SequenceLocation,
            PackStream, RetryPolicy, Access, diagnose, Finding, ask_health, ask_activity, ServerActivity,
            StreamActivity, MemoryDatasets, Takedown, Redaction, TakenPositions
Proof       EpochOfStreams, AuditReport, ComponentReport, TokenAudit, TokenReport
Seeing      draw_batch, draw_bins, explain_step, Picture, ExplainedStep
A run       Topology, BatchSchedule, BatchPhase, Balance, RemainderPolicy, StreamMode, Skips, Cursor, cost_linear_of
Tokens      as_token_source, TokenSource, MegatronSource, FlatSource, ArrowSource, ParquetSource, MdsSource,
            IndexableSource, MixtureSource, RemoteSource, RemoteArrowSource, StoreCache, StoreOptions, Separators
Batches     PackedBatch, BatchAssembler, BatchBuffers, BatchTensors, PackLayout, as_layout, context_parallel_indices
Loss        build_loss_weights, LossCounts, LossReduction, SequenceGroups, sequence_log_probs, sum_over_sequences,
            per_component_metrics, ComponentMetrics
Masks       build_packing_attention_bias, AttentionBiasBuffer, build_packing_cu_seqlens, build_boolean_mask,
            build_labelled_mask, build_block_mask, build_block_diagonal_mask, build_varlen_offsets, VarlenOffsets,
            varlen_attention, build_unpadding, Unpadding
Presets     get_preset, list_presets, Preset, jax_preset, llama_factory_preset, megatron_preset, megatron_lm_preset,
            padding_free_preset, rows_preset, torchtune_preset
Rollouts    pack_rollouts, RolloutBatch, OpenInstructPacks, to_open_instruct
Pairs       pack_pairs, as_pair_batch, PairBatch, pair_log_probs, PairLogProbs
Megatron    create_megatron_iterator, MegatronIterator, get_megatron_batch, MegatronBatch
Errors      PackhorseError, above those of the service (`help(packhorse.client.errors)` draws them); TokenSourceError,
            TokenStoreError

Log lines go to the logger "packhorse" and its children. It is quiet until you give it a handler, for example by
`logging.basicConfig()`.
"""

import logging
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from packhorse.client.answers import DatasetInfo, SequenceLocation, Stage
from packhorse.client.api import Client
from packhorse.client.connecting import connect
from packhorse.client.errors import (
    AccessDeniedError,
    DamagedAnswerError,
    DatasetCorruptError,
    DatasetNotFoundError,
    DigestMismatchError,
    InvalidRequestError,
    NotImplementedByServerError,
    PackhorseError,
    PositionPassedError,
    RequestTooLargeError,
    ServerFaultError,
    ServerShuttingDownError,
    ServerUnavailableError,
    StreamInterruptedError,
    TooManyRequestsError,
    TooManyStreamsError,
    TransientError,
    UnauthenticatedError,
    VersionMismatchError,
)
from packhorse.client.pictures import ExplainedStep, Picture, draw_batch, draw_bins, explain_step
from packhorse.client.proof.activity import ServerActivity, StreamActivity, ask_activity
from packhorse.client.proof.component_audit import ComponentReport
from packhorse.client.proof.diagnose import Finding, diagnose
from packhorse.client.proof.epoch_audit import AuditReport, EpochOfStreams
from packhorse.client.proof.health import ask_health
from packhorse.client.streams.blocks import BinBlock
from packhorse.client.streams.components import Component
from packhorse.client.streams.costs import cost_linear_of
from packhorse.client.streams.cursor import Cursor
from packhorse.client.streams.memory_datasets import MemoryDatasets
from packhorse.client.streams.pack_stream import PackStream
from packhorse.client.streams.stream import BinStream, StreamHeader
from packhorse.client.streams.takedown import Redaction, Takedown, TakenPositions
from packhorse.client.transport.access import Access
from packhorse.formats.retry_policy import RetryPolicy
from packhorse.topology import Balance, BatchPhase, BatchSchedule, RemainderPolicy, Skips, StreamMode, Topology

if TYPE_CHECKING:
    from packhorse.client.batches.batch import BatchAssembler
    from packhorse.client.batches.buffers import BatchBuffers, BatchTensors
    from packhorse.client.batches.context_parallel import context_parallel_indices
    from packhorse.client.batches.layout import PackLayout, as_layout
    from packhorse.client.batches.packed_batch import PackedBatch
    from packhorse.client.batches.separators import Separators
    from packhorse.client.loading.dataset import PackedDataset
    from packhorse.client.loading.loader import PackedDataLoader, create_packed_dataloader
    from packhorse.client.loading.packed_bins import PackedBins
    from packhorse.client.loading.prefetch import DevicePrefetcher
    from packhorse.client.losses.component_metrics import ComponentMetrics, per_component_metrics
    from packhorse.client.losses.loss_weights import LossCounts, LossReduction, SequenceGroups, build_loss_weights
    from packhorse.client.losses.sequence_sums import sequence_log_probs, sum_over_sequences
    from packhorse.client.masks import (
        AttentionBiasBuffer,
        Unpadding,
        VarlenOffsets,
        build_block_diagonal_mask,
        build_block_mask,
        build_boolean_mask,
        build_labelled_mask,
        build_packing_attention_bias,
        build_packing_cu_seqlens,
        build_unpadding,
        build_varlen_offsets,
        varlen_attention,
    )
    from packhorse.client.presets import (
        Preset,
        get_preset,
        jax_preset,
        list_presets,
        llama_factory_preset,
        megatron_lm_preset,
        megatron_preset,
        padding_free_preset,
        rows_preset,
        torchtune_preset,
    )
    from packhorse.client.proof.token_audit import TokenAudit, TokenReport
    from packhorse.client.rollouts import (
        OpenInstructPacks,
        PairBatch,
        PairLogProbs,
        RolloutBatch,
        as_pair_batch,
        pack_pairs,
        pack_rollouts,
        pair_log_probs,
        to_open_instruct,
    )
    from packhorse.client.sources import (
        ArrowSource,
        FlatSource,
        IndexableSource,
        MdsSource,
        MegatronSource,
        MixtureSource,
        ParquetSource,
        RemoteArrowSource,
        RemoteSource,
        StoreCache,
        StoreOptions,
        TokenSource,
        TokenSourceError,
        TokenStoreError,
        as_token_source,
    )
    from packhorse.client.trainers import (
        MegatronBatch,
        MegatronIterator,
        PackedData,
        PackedDataModule,
        create_megatron_iterator,
        get_megatron_batch,
    )
    from packhorse.client.trainers.separation import sees_other_sequences

_TORCH_PARTS = {
    "BatchAssembler": "batches.batch",
    "PackedBatch": "batches.packed_batch",
    "BatchBuffers": "batches.buffers",
    "BatchTensors": "batches.buffers",
    "ComponentMetrics": "losses.component_metrics",
    "per_component_metrics": "losses.component_metrics",
    "PackedBins": "loading.packed_bins",
    "PackedDataset": "loading.dataset",
    "context_parallel_indices": "batches.context_parallel",
    "PackLayout": "batches.layout",
    "as_layout": "batches.layout",
    "PackedData": "trainers",
    "PackedDataModule": "trainers",
    "PackedDataLoader": "loading.loader",
    "create_packed_dataloader": "loading.loader",
    "LossCounts": "losses.loss_weights",
    "LossReduction": "losses.loss_weights",
    "SequenceGroups": "losses.loss_weights",
    "build_loss_weights": "losses.loss_weights",
    "AttentionBiasBuffer": "masks",
    "Unpadding": "masks",
    "VarlenOffsets": "masks",
    "build_block_diagonal_mask": "masks",
    "build_block_mask": "masks",
    "build_boolean_mask": "masks",
    "build_labelled_mask": "masks",
    "build_packing_attention_bias": "masks",
    "build_packing_cu_seqlens": "masks",
    "build_unpadding": "masks",
    "build_varlen_offsets": "masks",
    "varlen_attention": "masks",
    "DevicePrefetcher": "loading.prefetch",
    "Preset": "presets",
    "get_preset": "presets",
    "jax_preset": "presets",
    "list_presets": "presets",
    "llama_factory_preset": "presets",
    "megatron_lm_preset": "presets",
    "megatron_preset": "presets",
    "padding_free_preset": "presets",
    "rows_preset": "presets",
    "torchtune_preset": "presets",
    "OpenInstructPacks": "rollouts",
    "PairBatch": "rollouts",
    "PairLogProbs": "rollouts",
    "RolloutBatch": "rollouts",
    "as_pair_batch": "rollouts",
    "pack_pairs": "rollouts",
    "pack_rollouts": "rollouts",
    "pair_log_probs": "rollouts",
    "to_open_instruct": "rollouts",
    "TokenAudit": "proof.token_audit",
    "TokenReport": "proof.token_audit",
    "Separators": "batches.separators",
    "sequence_log_probs": "losses.sequence_sums",
    "sum_over_sequences": "losses.sequence_sums",
    "ArrowSource": "sources",
    "FlatSource": "sources",
    "IndexableSource": "sources",
    "MdsSource": "sources",
    "MegatronSource": "sources",
    "MixtureSource": "sources",
    "ParquetSource": "sources",
    "RemoteArrowSource": "sources",
    "RemoteSource": "sources",
    "StoreCache": "sources",
    "StoreOptions": "sources",
    "TokenSource": "sources",
    "TokenSourceError": "sources",
    "TokenStoreError": "sources",
    "as_token_source": "sources",
    "MegatronBatch": "trainers",
    "MegatronIterator": "trainers",
    "create_megatron_iterator": "trainers",
    "get_megatron_batch": "trainers",
    "sees_other_sequences": "trainers.separation",
}

__all__ = [
    "Access",
    "AccessDeniedError",
    "ArrowSource",
    "AttentionBiasBuffer",
    "AuditReport",
    "Balance",
    "BatchAssembler",
    "BatchBuffers",
    "BatchPhase",
    "BatchSchedule",
    "BatchTensors",
    "BinBlock",
    "BinStream",
    "Client",
    "Component",
    "ComponentMetrics",
    "ComponentReport",
    "Cursor",
    "DamagedAnswerError",
    "DatasetCorruptError",
    "DatasetInfo",
    "DatasetNotFoundError",
    "DevicePrefetcher",
    "DigestMismatchError",
    "EpochOfStreams",
    "ExplainedStep",
    "Finding",
    "FlatSource",
    "IndexableSource",
    "InvalidRequestError",
    "LossCounts",
    "LossReduction",
    "MdsSource",
    "MegatronBatch",
    "MegatronIterator",
    "MegatronSource",
    "MemoryDatasets",
    "MixtureSource",
    "NotImplementedByServerError",
    "OpenInstructPacks",
    "PackLayout",
    "PackStream",
    "PackedBatch",
    "PackedBins",
    "PackedData",
    "PackedDataLoader",
    "PackedDataModule",
    "PackedDataset",
    "PackhorseError",
    "PairBatch",
    "PairLogProbs",
    "ParquetSource",
    "Picture",
    "PositionPassedError",
    "Preset",
    "Redaction",
    "RemainderPolicy",
    "RemoteArrowSource",
    "RemoteSource",
    "RequestTooLargeError",
    "RetryPolicy",
    "RolloutBatch",
    "Separators",
    "SequenceGroups",
    "SequenceLocation",
    "ServerActivity",
    "ServerFaultError",
    "ServerShuttingDownError",
    "ServerUnavailableError",
    "Skips",
    "Stage",
    "StoreCache",
    "StoreOptions",
    "StreamActivity",
    "StreamHeader",
    "StreamInterruptedError",
    "StreamMode",
    "Takedown",
    "TakenPositions",
    "TokenAudit",
    "TokenReport",
    "TokenSource",
    "TokenSourceError",
    "TokenStoreError",
    "TooManyRequestsError",
    "TooManyStreamsError",
    "Topology",
    "TransientError",
    "UnauthenticatedError",
    "Unpadding",
    "VarlenOffsets",
    "VersionMismatchError",
    "as_layout",
    "as_pair_batch",
    "as_token_source",
    "ask_activity",
    "ask_health",
    "build_block_diagonal_mask",
    "build_block_mask",
    "build_boolean_mask",
    "build_labelled_mask",
    "build_loss_weights",
    "build_packing_attention_bias",
    "build_packing_cu_seqlens",
    "build_unpadding",
    "build_varlen_offsets",
    "connect",
    "context_parallel_indices",
    "cost_linear_of",
    "create_megatron_iterator",
    "create_packed_dataloader",
    "diagnose",
    "draw_batch",
    "draw_bins",
    "explain_step",
    "get_megatron_batch",
    "get_preset",
    "jax_preset",
    "list_presets",
    "llama_factory_preset",
    "megatron_lm_preset",
    "megatron_preset",
    "pack_pairs",
    "pack_rollouts",
    "padding_free_preset",
    "pair_log_probs",
    "per_component_metrics",
    "rows_preset",
    "sees_other_sequences",
    "sequence_log_probs",
    "sum_over_sequences",
    "to_open_instruct",
    "torchtune_preset",
    "varlen_attention",
]

_PUBLIC = tuple(__all__)

if not TYPE_CHECKING:
    del __all__  # `__getattr__` finds it when `import *` asks: what there is depends on what is installed

try:
    __version__ = version("packhorse")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"

logging.getLogger("packhorse").addHandler(logging.NullHandler())


def _available() -> set[str]:
    """Names that can be had here: without torch, or Lightning, not what needs it."""
    missing: set[str] = set()
    if find_spec("torch") is None:
        missing = {*_TORCH_PARTS}
    elif find_spec("lightning") is None:
        missing = {"PackedDataModule"}
    return set(_PUBLIC) - missing


def __dir__() -> list[str]:
    """Lists what can be had here."""
    return sorted({*_available(), "errors", "__all__", *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    """Loads what needs torch; and says what `import *` takes, which is all of it."""
    if name == "__all__":
        return sorted(_available())
    if name not in _TORCH_PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_TORCH_PARTS[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"packhorse.client.{name} needs torch: install packhorse[client]") from None
