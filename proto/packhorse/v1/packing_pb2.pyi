from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IdType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ID_TYPE_UNSPECIFIED: _ClassVar[IdType]
    ID_TYPE_UINT32: _ClassVar[IdType]
    ID_TYPE_INT64: _ClassVar[IdType]

class RemainderPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REMAINDER_POLICY_UNSPECIFIED: _ClassVar[RemainderPolicy]
    REMAINDER_POLICY_SPREAD: _ClassVar[RemainderPolicy]
    REMAINDER_POLICY_DROP: _ClassVar[RemainderPolicy]
    REMAINDER_POLICY_REPEAT: _ClassVar[RemainderPolicy]
    REMAINDER_POLICY_EMPTY: _ClassVar[RemainderPolicy]

class Balance(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BALANCE_UNSPECIFIED: _ClassVar[Balance]
    BALANCE_NONE: _ClassVar[Balance]
    BALANCE_MICRO_STEP: _ClassVar[Balance]
    BALANCE_OPTIMIZER_STEP: _ClassVar[Balance]

class StreamMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STREAM_MODE_UNSPECIFIED: _ClassVar[StreamMode]
    STREAM_MODE_PARTITION: _ClassVar[StreamMode]
    STREAM_MODE_INDEPENDENT: _ClassVar[StreamMode]

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_FIELD: _ClassVar[ErrorReason]
    ERROR_REASON_DATASET_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_DATASET_CORRUPT: _ClassVar[ErrorReason]
    ERROR_REASON_DIGEST_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_IMPLEMENTED: _ClassVar[ErrorReason]
    ERROR_REASON_SHUTTING_DOWN: _ClassVar[ErrorReason]
    ERROR_REASON_TOO_MANY_STREAMS: _ClassVar[ErrorReason]
    ERROR_REASON_REQUEST_TOO_LARGE: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]
    ERROR_REASON_TOO_MANY_REQUESTS: _ClassVar[ErrorReason]
    ERROR_REASON_UNAUTHENTICATED: _ClassVar[ErrorReason]
    ERROR_REASON_ACCESS_DENIED: _ClassVar[ErrorReason]
    ERROR_REASON_VERSION_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_POSITION_PASSED: _ClassVar[ErrorReason]
    ERROR_REASON_TOKENS_NOT_SERVED: _ClassVar[ErrorReason]
ID_TYPE_UNSPECIFIED: IdType
ID_TYPE_UINT32: IdType
ID_TYPE_INT64: IdType
REMAINDER_POLICY_UNSPECIFIED: RemainderPolicy
REMAINDER_POLICY_SPREAD: RemainderPolicy
REMAINDER_POLICY_DROP: RemainderPolicy
REMAINDER_POLICY_REPEAT: RemainderPolicy
REMAINDER_POLICY_EMPTY: RemainderPolicy
BALANCE_UNSPECIFIED: Balance
BALANCE_NONE: Balance
BALANCE_MICRO_STEP: Balance
BALANCE_OPTIMIZER_STEP: Balance
STREAM_MODE_UNSPECIFIED: StreamMode
STREAM_MODE_PARTITION: StreamMode
STREAM_MODE_INDEPENDENT: StreamMode
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_INVALID_FIELD: ErrorReason
ERROR_REASON_DATASET_NOT_FOUND: ErrorReason
ERROR_REASON_DATASET_CORRUPT: ErrorReason
ERROR_REASON_DIGEST_MISMATCH: ErrorReason
ERROR_REASON_NOT_IMPLEMENTED: ErrorReason
ERROR_REASON_SHUTTING_DOWN: ErrorReason
ERROR_REASON_TOO_MANY_STREAMS: ErrorReason
ERROR_REASON_REQUEST_TOO_LARGE: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason
ERROR_REASON_TOO_MANY_REQUESTS: ErrorReason
ERROR_REASON_UNAUTHENTICATED: ErrorReason
ERROR_REASON_ACCESS_DENIED: ErrorReason
ERROR_REASON_VERSION_MISMATCH: ErrorReason
ERROR_REASON_POSITION_PASSED: ErrorReason
ERROR_REASON_TOKENS_NOT_SERVED: ErrorReason

class Dataset(_message.Message):
    __slots__ = ("name", "digest", "max_seq_len", "num_sequences", "num_bins", "total_tokens", "efficiency", "lower_bound", "num_rooms", "num_templates", "max_sequences_per_bin", "id_type", "algorithm", "ids_sum_a", "ids_sum_b", "over_length", "align", "extra_tokens", "keep", "id_column", "plan_cut_off", "own_tokens", "over_length_sequences", "over_length_source_tokens", "over_length_tokens", "source", "skipped_rows", "skipped_by_reason", "key_column", "num_groups", "older_digests", "components", "stages", "takedown", "context_rule", "resources", "shares_prefixes", "has_tokens", "has_loss_mask", "token_dtype")
    class SkippedByReasonEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQ_LEN_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_BINS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EFFICIENCY_FIELD_NUMBER: _ClassVar[int]
    LOWER_BOUND_FIELD_NUMBER: _ClassVar[int]
    NUM_ROOMS_FIELD_NUMBER: _ClassVar[int]
    NUM_TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_PER_BIN_FIELD_NUMBER: _ClassVar[int]
    ID_TYPE_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    IDS_SUM_A_FIELD_NUMBER: _ClassVar[int]
    IDS_SUM_B_FIELD_NUMBER: _ClassVar[int]
    OVER_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ALIGN_FIELD_NUMBER: _ClassVar[int]
    EXTRA_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    ID_COLUMN_FIELD_NUMBER: _ClassVar[int]
    PLAN_CUT_OFF_FIELD_NUMBER: _ClassVar[int]
    OWN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OVER_LENGTH_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    OVER_LENGTH_SOURCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OVER_LENGTH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_ROWS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_BY_REASON_FIELD_NUMBER: _ClassVar[int]
    KEY_COLUMN_FIELD_NUMBER: _ClassVar[int]
    NUM_GROUPS_FIELD_NUMBER: _ClassVar[int]
    OLDER_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    TAKEDOWN_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_RULE_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    SHARES_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    HAS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HAS_LOSS_MASK_FIELD_NUMBER: _ClassVar[int]
    TOKEN_DTYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    max_seq_len: int
    num_sequences: int
    num_bins: int
    total_tokens: int
    efficiency: float
    lower_bound: int
    num_rooms: int
    num_templates: int
    max_sequences_per_bin: int
    id_type: IdType
    algorithm: str
    ids_sum_a: int
    ids_sum_b: int
    over_length: str
    align: int
    extra_tokens: int
    keep: str
    id_column: str
    plan_cut_off: bool
    own_tokens: int
    over_length_sequences: int
    over_length_source_tokens: int
    over_length_tokens: int
    source: str
    skipped_rows: int
    skipped_by_reason: _containers.ScalarMap[str, int]
    key_column: str
    num_groups: int
    older_digests: _containers.RepeatedScalarFieldContainer[str]
    components: _containers.RepeatedCompositeFieldContainer[Component]
    stages: _containers.RepeatedCompositeFieldContainer[Stage]
    takedown: Takedown
    context_rule: ContextRule
    resources: _containers.RepeatedCompositeFieldContainer[Resource]
    shares_prefixes: bool
    has_tokens: bool
    has_loss_mask: bool
    token_dtype: str
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ..., max_seq_len: _Optional[int] = ..., num_sequences: _Optional[int] = ..., num_bins: _Optional[int] = ..., total_tokens: _Optional[int] = ..., efficiency: _Optional[float] = ..., lower_bound: _Optional[int] = ..., num_rooms: _Optional[int] = ..., num_templates: _Optional[int] = ..., max_sequences_per_bin: _Optional[int] = ..., id_type: _Optional[_Union[IdType, str]] = ..., algorithm: _Optional[str] = ..., ids_sum_a: _Optional[int] = ..., ids_sum_b: _Optional[int] = ..., over_length: _Optional[str] = ..., align: _Optional[int] = ..., extra_tokens: _Optional[int] = ..., keep: _Optional[str] = ..., id_column: _Optional[str] = ..., plan_cut_off: _Optional[bool] = ..., own_tokens: _Optional[int] = ..., over_length_sequences: _Optional[int] = ..., over_length_source_tokens: _Optional[int] = ..., over_length_tokens: _Optional[int] = ..., source: _Optional[str] = ..., skipped_rows: _Optional[int] = ..., skipped_by_reason: _Optional[_Mapping[str, int]] = ..., key_column: _Optional[str] = ..., num_groups: _Optional[int] = ..., older_digests: _Optional[_Iterable[str]] = ..., components: _Optional[_Iterable[_Union[Component, _Mapping]]] = ..., stages: _Optional[_Iterable[_Union[Stage, _Mapping]]] = ..., takedown: _Optional[_Union[Takedown, _Mapping]] = ..., context_rule: _Optional[_Union[ContextRule, _Mapping]] = ..., resources: _Optional[_Iterable[_Union[Resource, _Mapping]]] = ..., shares_prefixes: _Optional[bool] = ..., has_tokens: _Optional[bool] = ..., has_loss_mask: _Optional[bool] = ..., token_dtype: _Optional[str] = ...) -> None: ...

class Resource(_message.Message):
    __slots__ = ("name", "cap", "total", "most")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    name: str
    cap: int
    total: int
    most: int
    def __init__(self, name: _Optional[str] = ..., cap: _Optional[int] = ..., total: _Optional[int] = ..., most: _Optional[int] = ...) -> None: ...

class ContextRule(_message.Message):
    __slots__ = ("tokens_per_rank", "max_context_parallel", "cost_cap_percent", "cost_linear")
    TOKENS_PER_RANK_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    COST_CAP_PERCENT_FIELD_NUMBER: _ClassVar[int]
    COST_LINEAR_FIELD_NUMBER: _ClassVar[int]
    tokens_per_rank: int
    max_context_parallel: int
    cost_cap_percent: int
    cost_linear: int
    def __init__(self, tokens_per_rank: _Optional[int] = ..., max_context_parallel: _Optional[int] = ..., cost_cap_percent: _Optional[int] = ..., cost_linear: _Optional[int] = ...) -> None: ...

class Takedown(_message.Message):
    __slots__ = ("digest", "redactions", "skips")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    REDACTIONS_FIELD_NUMBER: _ClassVar[int]
    SKIPS_FIELD_NUMBER: _ClassVar[int]
    digest: str
    redactions: _containers.RepeatedCompositeFieldContainer[Redaction]
    skips: _containers.RepeatedCompositeFieldContainer[TakedownSkip]
    def __init__(self, digest: _Optional[str] = ..., redactions: _Optional[_Iterable[_Union[Redaction, _Mapping]]] = ..., skips: _Optional[_Iterable[_Union[TakedownSkip, _Mapping]]] = ...) -> None: ...

class Redaction(_message.Message):
    __slots__ = ("component", "num_ids", "token", "reason", "seed", "from_position", "digest")
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    NUM_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    FROM_POSITION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    component: str
    num_ids: int
    token: int
    reason: str
    seed: int
    from_position: int
    digest: str
    def __init__(self, component: _Optional[str] = ..., num_ids: _Optional[int] = ..., token: _Optional[int] = ..., reason: _Optional[str] = ..., seed: _Optional[int] = ..., from_position: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class TakedownSkip(_message.Message):
    __slots__ = ("first", "end", "epoch", "seed", "reason")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    epoch: int
    seed: int
    reason: str
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ..., epoch: _Optional[int] = ..., seed: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Component(_message.Message):
    __slots__ = ("name", "digest", "max_seq_len", "num_bins", "num_sequences", "own_tokens", "over_length", "keep", "id_column", "first_epoch", "first_position", "num_taken", "rows_per_bin", "key_column")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQ_LEN_FIELD_NUMBER: _ClassVar[int]
    NUM_BINS_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    OWN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OVER_LENGTH_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    ID_COLUMN_FIELD_NUMBER: _ClassVar[int]
    FIRST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    NUM_TAKEN_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_BIN_FIELD_NUMBER: _ClassVar[int]
    KEY_COLUMN_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    max_seq_len: int
    num_bins: int
    num_sequences: int
    own_tokens: int
    over_length: str
    keep: str
    id_column: str
    first_epoch: int
    first_position: int
    num_taken: int
    rows_per_bin: int
    key_column: str
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ..., max_seq_len: _Optional[int] = ..., num_bins: _Optional[int] = ..., num_sequences: _Optional[int] = ..., own_tokens: _Optional[int] = ..., over_length: _Optional[str] = ..., keep: _Optional[str] = ..., id_column: _Optional[str] = ..., first_epoch: _Optional[int] = ..., first_position: _Optional[int] = ..., num_taken: _Optional[int] = ..., rows_per_bin: _Optional[int] = ..., key_column: _Optional[str] = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("first_position", "digest", "shares", "bins_per_draw")
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    BINS_PER_DRAW_FIELD_NUMBER: _ClassVar[int]
    first_position: int
    digest: str
    shares: _containers.RepeatedScalarFieldContainer[str]
    bins_per_draw: int
    def __init__(self, first_position: _Optional[int] = ..., digest: _Optional[str] = ..., shares: _Optional[_Iterable[str]] = ..., bins_per_draw: _Optional[int] = ...) -> None: ...

class Bins(_message.Message):
    __slots__ = ("ids", "templates", "defined_templates", "defined_sizes", "defined_lengths", "defined_components", "position_offsets", "base_position", "first_tokens", "group_ids", "redacted", "redacted_tokens", "rows", "checksum")
    IDS_FIELD_NUMBER: _ClassVar[int]
    TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    DEFINED_TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    DEFINED_SIZES_FIELD_NUMBER: _ClassVar[int]
    DEFINED_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    DEFINED_COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    POSITION_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    BASE_POSITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    REDACTED_FIELD_NUMBER: _ClassVar[int]
    REDACTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    ids: bytes
    templates: bytes
    defined_templates: bytes
    defined_sizes: bytes
    defined_lengths: bytes
    defined_components: bytes
    position_offsets: bytes
    base_position: int
    first_tokens: bytes
    group_ids: bytes
    redacted: bytes
    redacted_tokens: bytes
    rows: bytes
    checksum: int
    def __init__(self, ids: _Optional[bytes] = ..., templates: _Optional[bytes] = ..., defined_templates: _Optional[bytes] = ..., defined_sizes: _Optional[bytes] = ..., defined_lengths: _Optional[bytes] = ..., defined_components: _Optional[bytes] = ..., position_offsets: _Optional[bytes] = ..., base_position: _Optional[int] = ..., first_tokens: _Optional[bytes] = ..., group_ids: _Optional[bytes] = ..., redacted: _Optional[bytes] = ..., redacted_tokens: _Optional[bytes] = ..., rows: _Optional[bytes] = ..., checksum: _Optional[int] = ...) -> None: ...

class Topology(_message.Message):
    __slots__ = ("world_size", "workers_per_rank", "batch_size", "start_position", "remainder", "mode", "balance", "accumulation", "cost_linear", "batch_schedule")
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_PER_RANK_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    START_POSITION_FIELD_NUMBER: _ClassVar[int]
    REMAINDER_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    BALANCE_FIELD_NUMBER: _ClassVar[int]
    ACCUMULATION_FIELD_NUMBER: _ClassVar[int]
    COST_LINEAR_FIELD_NUMBER: _ClassVar[int]
    BATCH_SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    world_size: int
    workers_per_rank: int
    batch_size: int
    start_position: int
    remainder: RemainderPolicy
    mode: StreamMode
    balance: Balance
    accumulation: int
    cost_linear: int
    batch_schedule: _containers.RepeatedCompositeFieldContainer[BatchPhase]
    def __init__(self, world_size: _Optional[int] = ..., workers_per_rank: _Optional[int] = ..., batch_size: _Optional[int] = ..., start_position: _Optional[int] = ..., remainder: _Optional[_Union[RemainderPolicy, str]] = ..., mode: _Optional[_Union[StreamMode, str]] = ..., balance: _Optional[_Union[Balance, str]] = ..., accumulation: _Optional[int] = ..., cost_linear: _Optional[int] = ..., batch_schedule: _Optional[_Iterable[_Union[BatchPhase, _Mapping]]] = ...) -> None: ...

class BatchPhase(_message.Message):
    __slots__ = ("bins", "tokens", "global_batch_size")
    BINS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    bins: int
    tokens: int
    global_batch_size: int
    def __init__(self, bins: _Optional[int] = ..., tokens: _Optional[int] = ..., global_batch_size: _Optional[int] = ...) -> None: ...

class PositionRange(_message.Message):
    __slots__ = ("first", "end")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class ListDatasetsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDatasetsResponse(_message.Message):
    __slots__ = ("datasets", "server_version", "token_expires_seconds")
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_EXPIRES_SECONDS_FIELD_NUMBER: _ClassVar[int]
    datasets: _containers.RepeatedCompositeFieldContainer[Dataset]
    server_version: str
    token_expires_seconds: int
    def __init__(self, datasets: _Optional[_Iterable[_Union[Dataset, _Mapping]]] = ..., server_version: _Optional[str] = ..., token_expires_seconds: _Optional[int] = ...) -> None: ...

class GetDatasetRequest(_message.Message):
    __slots__ = ("name", "dataset_digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATASET_DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    dataset_digest: str
    def __init__(self, name: _Optional[str] = ..., dataset_digest: _Optional[str] = ...) -> None: ...

class GetDatasetResponse(_message.Message):
    __slots__ = ("dataset",)
    DATASET_FIELD_NUMBER: _ClassVar[int]
    dataset: Dataset
    def __init__(self, dataset: _Optional[_Union[Dataset, _Mapping]] = ...) -> None: ...

class StreamBinsRequest(_message.Message):
    __slots__ = ("dataset", "epoch", "seed", "topology", "rank", "worker", "skip", "first_step", "expected_digest", "wire_version", "dataset_digest", "run_id", "with_tokens")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    DATASET_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    WITH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    epoch: int
    seed: int
    topology: Topology
    rank: int
    worker: int
    skip: _containers.RepeatedCompositeFieldContainer[PositionRange]
    first_step: int
    expected_digest: str
    wire_version: int
    dataset_digest: str
    run_id: str
    with_tokens: bool
    def __init__(self, dataset: _Optional[str] = ..., epoch: _Optional[int] = ..., seed: _Optional[int] = ..., topology: _Optional[_Union[Topology, _Mapping]] = ..., rank: _Optional[int] = ..., worker: _Optional[int] = ..., skip: _Optional[_Iterable[_Union[PositionRange, _Mapping]]] = ..., first_step: _Optional[int] = ..., expected_digest: _Optional[str] = ..., wire_version: _Optional[int] = ..., dataset_digest: _Optional[str] = ..., run_id: _Optional[str] = ..., with_tokens: _Optional[bool] = ...) -> None: ...

class StreamBinsResponse(_message.Message):
    __slots__ = ("header", "block")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    header: StreamHeader
    block: StreamBlock
    def __init__(self, header: _Optional[_Union[StreamHeader, _Mapping]] = ..., block: _Optional[_Union[StreamBlock, _Mapping]] = ...) -> None: ...

class StreamHeader(_message.Message):
    __slots__ = ("digest", "num_steps", "num_bins", "num_bins_dropped", "max_seq_len", "max_sequences_per_bin", "id_type", "align", "extra_tokens", "over_length", "keep", "id_column", "checksum", "components", "skipped", "context_rule", "shares_prefixes", "tokens_fingerprint", "tokens_sequences")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_BINS_FIELD_NUMBER: _ClassVar[int]
    NUM_BINS_DROPPED_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQ_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_PER_BIN_FIELD_NUMBER: _ClassVar[int]
    ID_TYPE_FIELD_NUMBER: _ClassVar[int]
    ALIGN_FIELD_NUMBER: _ClassVar[int]
    EXTRA_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OVER_LENGTH_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    ID_COLUMN_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_RULE_FIELD_NUMBER: _ClassVar[int]
    SHARES_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    digest: str
    num_steps: int
    num_bins: int
    num_bins_dropped: int
    max_seq_len: int
    max_sequences_per_bin: int
    id_type: IdType
    align: int
    extra_tokens: int
    over_length: str
    keep: str
    id_column: str
    checksum: int
    components: _containers.RepeatedCompositeFieldContainer[Component]
    skipped: _containers.RepeatedCompositeFieldContainer[PositionRange]
    context_rule: ContextRule
    shares_prefixes: bool
    tokens_fingerprint: str
    tokens_sequences: int
    def __init__(self, digest: _Optional[str] = ..., num_steps: _Optional[int] = ..., num_bins: _Optional[int] = ..., num_bins_dropped: _Optional[int] = ..., max_seq_len: _Optional[int] = ..., max_sequences_per_bin: _Optional[int] = ..., id_type: _Optional[_Union[IdType, str]] = ..., align: _Optional[int] = ..., extra_tokens: _Optional[int] = ..., over_length: _Optional[str] = ..., keep: _Optional[str] = ..., id_column: _Optional[str] = ..., checksum: _Optional[int] = ..., components: _Optional[_Iterable[_Union[Component, _Mapping]]] = ..., skipped: _Optional[_Iterable[_Union[PositionRange, _Mapping]]] = ..., context_rule: _Optional[_Union[ContextRule, _Mapping]] = ..., shares_prefixes: _Optional[bool] = ..., tokens_fingerprint: _Optional[str] = ..., tokens_sequences: _Optional[int] = ...) -> None: ...

class StreamBlock(_message.Message):
    __slots__ = ("first_step", "num_steps", "bins", "num_sequences", "num_tokens", "tokens")
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    first_step: int
    num_steps: int
    bins: Bins
    num_sequences: int
    num_tokens: int
    tokens: Tokens
    def __init__(self, first_step: _Optional[int] = ..., num_steps: _Optional[int] = ..., bins: _Optional[_Union[Bins, _Mapping]] = ..., num_sequences: _Optional[int] = ..., num_tokens: _Optional[int] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("tokens", "token_bytes", "sizes", "whole_sizes", "loss_mask", "checksum", "has_prefixes")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    WHOLE_SIZES_FIELD_NUMBER: _ClassVar[int]
    LOSS_MASK_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    HAS_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    token_bytes: int
    sizes: bytes
    whole_sizes: bytes
    loss_mask: bytes
    checksum: int
    has_prefixes: bool
    def __init__(self, tokens: _Optional[bytes] = ..., token_bytes: _Optional[int] = ..., sizes: _Optional[bytes] = ..., whole_sizes: _Optional[bytes] = ..., loss_mask: _Optional[bytes] = ..., checksum: _Optional[int] = ..., has_prefixes: _Optional[bool] = ...) -> None: ...

class GetBinsRequest(_message.Message):
    __slots__ = ("dataset", "epoch", "seed", "positions", "expected_digest", "skip", "wire_version", "is_whole", "dataset_digest", "with_tokens")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    DATASET_DIGEST_FIELD_NUMBER: _ClassVar[int]
    WITH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    epoch: int
    seed: int
    positions: _containers.RepeatedScalarFieldContainer[int]
    expected_digest: str
    skip: _containers.RepeatedCompositeFieldContainer[PositionRange]
    wire_version: int
    is_whole: bool
    dataset_digest: str
    with_tokens: bool
    def __init__(self, dataset: _Optional[str] = ..., epoch: _Optional[int] = ..., seed: _Optional[int] = ..., positions: _Optional[_Iterable[int]] = ..., expected_digest: _Optional[str] = ..., skip: _Optional[_Iterable[_Union[PositionRange, _Mapping]]] = ..., wire_version: _Optional[int] = ..., is_whole: _Optional[bool] = ..., dataset_digest: _Optional[str] = ..., with_tokens: _Optional[bool] = ...) -> None: ...

class GetBinsResponse(_message.Message):
    __slots__ = ("digest", "id_type", "bins", "tokens")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ID_TYPE_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    digest: str
    id_type: IdType
    bins: Bins
    tokens: Tokens
    def __init__(self, digest: _Optional[str] = ..., id_type: _Optional[_Union[IdType, str]] = ..., bins: _Optional[_Union[Bins, _Mapping]] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ...) -> None: ...

class LocateSequencesRequest(_message.Message):
    __slots__ = ("dataset", "epoch", "seed", "ids", "topology", "expected_digest", "skip", "keys", "with_keys", "dataset_digest")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    WITH_KEYS_FIELD_NUMBER: _ClassVar[int]
    DATASET_DIGEST_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    epoch: int
    seed: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    topology: Topology
    expected_digest: str
    skip: _containers.RepeatedCompositeFieldContainer[PositionRange]
    keys: _containers.RepeatedScalarFieldContainer[str]
    with_keys: bool
    dataset_digest: str
    def __init__(self, dataset: _Optional[str] = ..., epoch: _Optional[int] = ..., seed: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., topology: _Optional[_Union[Topology, _Mapping]] = ..., expected_digest: _Optional[str] = ..., skip: _Optional[_Iterable[_Union[PositionRange, _Mapping]]] = ..., keys: _Optional[_Iterable[str]] = ..., with_keys: _Optional[bool] = ..., dataset_digest: _Optional[str] = ...) -> None: ...

class LocateSequencesResponse(_message.Message):
    __slots__ = ("digest", "locations", "checksum")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    LOCATIONS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    digest: str
    locations: _containers.RepeatedCompositeFieldContainer[SequenceLocation]
    checksum: int
    def __init__(self, digest: _Optional[str] = ..., locations: _Optional[_Iterable[_Union[SequenceLocation, _Mapping]]] = ..., checksum: _Optional[int] = ...) -> None: ...

class SequenceLocation(_message.Message):
    __slots__ = ("id", "found", "length", "position", "index_in_bin", "stream_location", "first_token", "component", "key")
    ID_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    INDEX_IN_BIN_FIELD_NUMBER: _ClassVar[int]
    STREAM_LOCATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    id: int
    found: bool
    length: int
    position: int
    index_in_bin: int
    stream_location: StreamLocation
    first_token: int
    component: str
    key: str
    def __init__(self, id: _Optional[int] = ..., found: _Optional[bool] = ..., length: _Optional[int] = ..., position: _Optional[int] = ..., index_in_bin: _Optional[int] = ..., stream_location: _Optional[_Union[StreamLocation, _Mapping]] = ..., first_token: _Optional[int] = ..., component: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class StreamLocation(_message.Message):
    __slots__ = ("step", "rank", "worker", "slot")
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    step: int
    rank: int
    worker: int
    slot: int
    def __init__(self, step: _Optional[int] = ..., rank: _Optional[int] = ..., worker: _Optional[int] = ..., slot: _Optional[int] = ...) -> None: ...

class PackSequencesRequest(_message.Message):
    __slots__ = ("lengths", "max_seq_len", "algorithm", "max_sequences_per_bin", "num_bins_multiple_of", "seed", "align", "extra_tokens", "balance", "cost_linear", "allow_empty", "separate_by", "groups", "budgets", "costs")
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQ_LEN_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_PER_BIN_FIELD_NUMBER: _ClassVar[int]
    NUM_BINS_MULTIPLE_OF_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ALIGN_FIELD_NUMBER: _ClassVar[int]
    EXTRA_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BALANCE_FIELD_NUMBER: _ClassVar[int]
    COST_LINEAR_FIELD_NUMBER: _ClassVar[int]
    ALLOW_EMPTY_FIELD_NUMBER: _ClassVar[int]
    SEPARATE_BY_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    max_seq_len: int
    algorithm: str
    max_sequences_per_bin: int
    num_bins_multiple_of: int
    seed: int
    align: int
    extra_tokens: int
    balance: Balance
    cost_linear: int
    allow_empty: bool
    separate_by: _containers.RepeatedScalarFieldContainer[int]
    groups: _containers.RepeatedScalarFieldContainer[int]
    budgets: _containers.RepeatedCompositeFieldContainer[Budget]
    costs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lengths: _Optional[_Iterable[int]] = ..., max_seq_len: _Optional[int] = ..., algorithm: _Optional[str] = ..., max_sequences_per_bin: _Optional[int] = ..., num_bins_multiple_of: _Optional[int] = ..., seed: _Optional[int] = ..., align: _Optional[int] = ..., extra_tokens: _Optional[int] = ..., balance: _Optional[_Union[Balance, str]] = ..., cost_linear: _Optional[int] = ..., allow_empty: _Optional[bool] = ..., separate_by: _Optional[_Iterable[int]] = ..., groups: _Optional[_Iterable[int]] = ..., budgets: _Optional[_Iterable[_Union[Budget, _Mapping]]] = ..., costs: _Optional[_Iterable[int]] = ...) -> None: ...

class Budget(_message.Message):
    __slots__ = ("name", "cap", "amounts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAP_FIELD_NUMBER: _ClassVar[int]
    AMOUNTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    cap: int
    amounts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., cap: _Optional[int] = ..., amounts: _Optional[_Iterable[int]] = ...) -> None: ...

class PackSequencesResponse(_message.Message):
    __slots__ = ("indices", "bin_ends", "lower_bound", "algorithm")
    INDICES_FIELD_NUMBER: _ClassVar[int]
    BIN_ENDS_FIELD_NUMBER: _ClassVar[int]
    LOWER_BOUND_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    indices: bytes
    bin_ends: bytes
    lower_bound: int
    algorithm: str
    def __init__(self, indices: _Optional[bytes] = ..., bin_ends: _Optional[bytes] = ..., lower_bound: _Optional[int] = ..., algorithm: _Optional[str] = ...) -> None: ...

class PackStreamRequest(_message.Message):
    __slots__ = ("options", "sequences", "flush")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    options: PackStreamOptions
    sequences: PackStreamSequences
    flush: PackStreamFlush
    def __init__(self, options: _Optional[_Union[PackStreamOptions, _Mapping]] = ..., sequences: _Optional[_Union[PackStreamSequences, _Mapping]] = ..., flush: _Optional[_Union[PackStreamFlush, _Mapping]] = ...) -> None: ...

class PackStreamOptions(_message.Message):
    __slots__ = ("max_seq_len", "lookahead_sequences", "max_sequences_per_bin", "align", "extra_tokens", "num_bins_multiple_of", "accumulation", "balance", "cost_linear", "allow_empty", "wire_version", "budgets", "max_staleness", "evict_groups", "separate_versions")
    MAX_SEQ_LEN_FIELD_NUMBER: _ClassVar[int]
    LOOKAHEAD_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_PER_BIN_FIELD_NUMBER: _ClassVar[int]
    ALIGN_FIELD_NUMBER: _ClassVar[int]
    EXTRA_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BINS_MULTIPLE_OF_FIELD_NUMBER: _ClassVar[int]
    ACCUMULATION_FIELD_NUMBER: _ClassVar[int]
    BALANCE_FIELD_NUMBER: _ClassVar[int]
    COST_LINEAR_FIELD_NUMBER: _ClassVar[int]
    ALLOW_EMPTY_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    MAX_STALENESS_FIELD_NUMBER: _ClassVar[int]
    EVICT_GROUPS_FIELD_NUMBER: _ClassVar[int]
    SEPARATE_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    max_seq_len: int
    lookahead_sequences: int
    max_sequences_per_bin: int
    align: int
    extra_tokens: int
    num_bins_multiple_of: int
    accumulation: int
    balance: Balance
    cost_linear: int
    allow_empty: bool
    wire_version: int
    budgets: _containers.RepeatedCompositeFieldContainer[Budget]
    max_staleness: int
    evict_groups: bool
    separate_versions: bool
    def __init__(self, max_seq_len: _Optional[int] = ..., lookahead_sequences: _Optional[int] = ..., max_sequences_per_bin: _Optional[int] = ..., align: _Optional[int] = ..., extra_tokens: _Optional[int] = ..., num_bins_multiple_of: _Optional[int] = ..., accumulation: _Optional[int] = ..., balance: _Optional[_Union[Balance, str]] = ..., cost_linear: _Optional[int] = ..., allow_empty: _Optional[bool] = ..., wire_version: _Optional[int] = ..., budgets: _Optional[_Iterable[_Union[Budget, _Mapping]]] = ..., max_staleness: _Optional[int] = ..., evict_groups: _Optional[bool] = ..., separate_versions: _Optional[bool] = ...) -> None: ...

class PackStreamSequences(_message.Message):
    __slots__ = ("ids", "lengths", "groups", "amounts", "versions", "policy_version")
    IDS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    AMOUNTS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    groups: _containers.RepeatedScalarFieldContainer[int]
    amounts: _containers.RepeatedScalarFieldContainer[int]
    versions: _containers.RepeatedScalarFieldContainer[int]
    policy_version: int
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., lengths: _Optional[_Iterable[int]] = ..., groups: _Optional[_Iterable[int]] = ..., amounts: _Optional[_Iterable[int]] = ..., versions: _Optional[_Iterable[int]] = ..., policy_version: _Optional[int] = ...) -> None: ...

class PackStreamFlush(_message.Message):
    __slots__ = ("policy_version",)
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    def __init__(self, policy_version: _Optional[int] = ...) -> None: ...

class PackStreamResponse(_message.Message):
    __slots__ = ("bins", "num_sequences_held", "evicted")
    BINS_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_HELD_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    bins: Bins
    num_sequences_held: int
    evicted: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, bins: _Optional[_Union[Bins, _Mapping]] = ..., num_sequences_held: _Optional[int] = ..., evicted: _Optional[_Iterable[int]] = ...) -> None: ...

class GetActivityRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetActivityResponse(_message.Message):
    __slots__ = ("server_version", "process", "num_processes", "uptime_seconds", "max_streams", "streams", "lanes", "datasets", "process_activity")
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_STREAMS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    server_version: str
    process: int
    num_processes: int
    uptime_seconds: float
    max_streams: int
    streams: _containers.RepeatedCompositeFieldContainer[StreamActivity]
    lanes: _containers.RepeatedCompositeFieldContainer[LaneActivity]
    datasets: _containers.RepeatedCompositeFieldContainer[DatasetActivity]
    process_activity: ProcessActivity
    def __init__(self, server_version: _Optional[str] = ..., process: _Optional[int] = ..., num_processes: _Optional[int] = ..., uptime_seconds: _Optional[float] = ..., max_streams: _Optional[int] = ..., streams: _Optional[_Iterable[_Union[StreamActivity, _Mapping]]] = ..., lanes: _Optional[_Iterable[_Union[LaneActivity, _Mapping]]] = ..., datasets: _Optional[_Iterable[_Union[DatasetActivity, _Mapping]]] = ..., process_activity: _Optional[_Union[ProcessActivity, _Mapping]] = ...) -> None: ...

class ProcessActivity(_message.Message):
    __slots__ = ("processor_seconds", "memory_bytes", "memory_limit_bytes", "open_files", "most_open_files", "num_connections", "num_connections_without_request", "bytes_without_request")
    PROCESSOR_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPEN_FILES_FIELD_NUMBER: _ClassVar[int]
    MOST_OPEN_FILES_FIELD_NUMBER: _ClassVar[int]
    NUM_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_CONNECTIONS_WITHOUT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    BYTES_WITHOUT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    processor_seconds: float
    memory_bytes: int
    memory_limit_bytes: int
    open_files: int
    most_open_files: int
    num_connections: int
    num_connections_without_request: int
    bytes_without_request: int
    def __init__(self, processor_seconds: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., open_files: _Optional[int] = ..., most_open_files: _Optional[int] = ..., num_connections: _Optional[int] = ..., num_connections_without_request: _Optional[int] = ..., bytes_without_request: _Optional[int] = ...) -> None: ...

class StreamActivity(_message.Message):
    __slots__ = ("id", "method", "dataset", "epoch", "seed", "rank", "worker", "world_size", "batch_size", "first_step", "next_step", "num_steps", "num_messages", "sent_bytes", "open_seconds", "blocked_seconds", "waiting_seconds", "peer", "digest")
    ID_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAITING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    id: str
    method: str
    dataset: str
    epoch: int
    seed: int
    rank: int
    worker: int
    world_size: int
    batch_size: int
    first_step: int
    next_step: int
    num_steps: int
    num_messages: int
    sent_bytes: int
    open_seconds: float
    blocked_seconds: float
    waiting_seconds: float
    peer: str
    digest: str
    def __init__(self, id: _Optional[str] = ..., method: _Optional[str] = ..., dataset: _Optional[str] = ..., epoch: _Optional[int] = ..., seed: _Optional[int] = ..., rank: _Optional[int] = ..., worker: _Optional[int] = ..., world_size: _Optional[int] = ..., batch_size: _Optional[int] = ..., first_step: _Optional[int] = ..., next_step: _Optional[int] = ..., num_steps: _Optional[int] = ..., num_messages: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., open_seconds: _Optional[float] = ..., blocked_seconds: _Optional[float] = ..., waiting_seconds: _Optional[float] = ..., peer: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class LaneActivity(_message.Message):
    __slots__ = ("name", "num_waiting")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_waiting: int
    def __init__(self, name: _Optional[str] = ..., num_waiting: _Optional[int] = ...) -> None: ...

class DatasetActivity(_message.Message):
    __slots__ = ("name", "num_bins", "num_sequences", "num_tokens")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_BINS_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_bins: int
    num_sequences: int
    num_tokens: int
    def __init__(self, name: _Optional[str] = ..., num_bins: _Optional[int] = ..., num_sequences: _Optional[int] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class AppendStageRequest(_message.Message):
    __slots__ = ("dataset", "from_position", "weights", "by", "replace")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    FROM_POSITION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    from_position: int
    weights: _containers.RepeatedCompositeFieldContainer[ComponentWeight]
    by: str
    replace: bool
    def __init__(self, dataset: _Optional[str] = ..., from_position: _Optional[int] = ..., weights: _Optional[_Iterable[_Union[ComponentWeight, _Mapping]]] = ..., by: _Optional[str] = ..., replace: _Optional[bool] = ...) -> None: ...

class ComponentWeight(_message.Message):
    __slots__ = ("component", "weight")
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    component: str
    weight: str
    def __init__(self, component: _Optional[str] = ..., weight: _Optional[str] = ...) -> None: ...

class AppendStageResponse(_message.Message):
    __slots__ = ("dataset",)
    DATASET_FIELD_NUMBER: _ClassVar[int]
    dataset: Dataset
    def __init__(self, dataset: _Optional[_Union[Dataset, _Mapping]] = ...) -> None: ...
