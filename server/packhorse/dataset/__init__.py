"""The prepared folder: its layout, its checks, its digest and versions, and the mixtures and takedowns of such folders.

Only re-exports. Start with `load`, which opens a folder, and `output.write`, which completes one.
"""

from packhorse.dataset.arrays import create_array, growing_array, write_entries
from packhorse.dataset.digest import PARTS, differing_parts
from packhorse.dataset.errors import PreparedDatasetError
from packhorse.dataset.facts import (
    MOST_LISTED,
    Facts,
    GroupRecord,
    InputRecord,
    Inputs,
    KeyRecord,
    OverLengthLedger,
    ResourceRecord,
    SequenceFacts,
    SkippedRow,
    SkippedRows,
    TokensRecord,
)
from packhorse.dataset.files.appending import append_to_mixture
from packhorse.dataset.files.mixture_digest import parts_at
from packhorse.dataset.files.mixture_file import (
    MIXTURE_SUFFIX,
    MOST_MIXTURE_BYTES,
    ComponentEntry,
    MixtureError,
    MixtureFile,
    StageEntry,
    render_stage,
)
from packhorse.dataset.files.open_mixture import MixtureDataset
from packhorse.dataset.files.open_takedown import MASKED, Redacted, Takedown
from packhorse.dataset.files.redacting import redact
from packhorse.dataset.files.sequence_names import parse_ids
from packhorse.dataset.files.takedown_file import (
    MOST_TAKEDOWN_BYTES,
    TAKEDOWN_SUFFIX,
    Redaction,
    SkipEntry,
    TakedownError,
    TakedownFile,
    read_ids_of,
    takedown_text,
)
from packhorse.dataset.files.toml_files import text_of
from packhorse.dataset.json_files import read_records, write_records
from packhorse.dataset.keys import DuplicateKeyError, KeyRows, Keys, write_keys
from packhorse.dataset.layout import (
    CLASSES,
    DROPPED_GROUPS,
    GROUPS,
    INPUTS,
    MANIFEST,
    MEMBER_ORDER,
    MEMBERS,
    OVER_LENGTH,
    POOLS,
    RESOURCES,
    SKIPPED,
    STARTS,
    TOKENS,
    datasets_below,
    is_prepared,
)
from packhorse.dataset.load import PreparedDataset, open_prepared
from packhorse.dataset.manifest import FORMAT_VERSION, Manifest
from packhorse.dataset.output.locked import LOCK, locked
from packhorse.dataset.output.refusals import refuse_holding, refuse_output
from packhorse.dataset.output.replacing import aside_of, left_aside, written_whole
from packhorse.dataset.output.write import seal
from packhorse.dataset.plan_options import Keep, OverLength, PlanOptions
from packhorse.dataset.quality import stats_of
from packhorse.dataset.seqpack_layout import (
    Loaded,
    is_seqpack_layout,
    load_prepared,
    load_seqpack_layout,
    pools_by_length,
    write_seqpack_layout,
)
from packhorse.dataset.verifying.files import verify_files
from packhorse.dataset.verifying.lengths import Difference, LengthReport, LengthsOf, verify_lengths
from packhorse.dataset.versions import Version, find_version, link_tokens, link_versions, prune_version, versions_of

__all__ = [
    "CLASSES",
    "DROPPED_GROUPS",
    "FORMAT_VERSION",
    "GROUPS",
    "INPUTS",
    "LOCK",
    "MANIFEST",
    "MASKED",
    "MEMBERS",
    "MEMBER_ORDER",
    "MIXTURE_SUFFIX",
    "MOST_LISTED",
    "MOST_MIXTURE_BYTES",
    "MOST_TAKEDOWN_BYTES",
    "OVER_LENGTH",
    "PARTS",
    "POOLS",
    "RESOURCES",
    "SKIPPED",
    "STARTS",
    "TAKEDOWN_SUFFIX",
    "TOKENS",
    "ComponentEntry",
    "Difference",
    "DuplicateKeyError",
    "Facts",
    "GroupRecord",
    "InputRecord",
    "Inputs",
    "Keep",
    "KeyRecord",
    "KeyRows",
    "Keys",
    "LengthReport",
    "LengthsOf",
    "Loaded",
    "Manifest",
    "MixtureDataset",
    "MixtureError",
    "MixtureFile",
    "OverLength",
    "OverLengthLedger",
    "PlanOptions",
    "PreparedDataset",
    "PreparedDatasetError",
    "Redacted",
    "Redaction",
    "ResourceRecord",
    "SequenceFacts",
    "SkipEntry",
    "SkippedRow",
    "SkippedRows",
    "StageEntry",
    "Takedown",
    "TakedownError",
    "TakedownFile",
    "TokensRecord",
    "Version",
    "append_to_mixture",
    "aside_of",
    "create_array",
    "datasets_below",
    "differing_parts",
    "find_version",
    "growing_array",
    "is_prepared",
    "is_seqpack_layout",
    "left_aside",
    "link_tokens",
    "link_versions",
    "load_prepared",
    "load_seqpack_layout",
    "locked",
    "open_prepared",
    "parse_ids",
    "parts_at",
    "pools_by_length",
    "prune_version",
    "read_ids_of",
    "read_records",
    "redact",
    "refuse_holding",
    "refuse_output",
    "render_stage",
    "seal",
    "stats_of",
    "takedown_text",
    "text_of",
    "verify_files",
    "verify_lengths",
    "versions_of",
    "write_entries",
    "write_keys",
    "write_records",
    "write_seqpack_layout",
    "written_whole",
]
