"""The prepared folder: layout, checks, digest, pools."""

from packhorse.dataset.arrays import create_array, growing_array, write_entries
from packhorse.dataset.digest import PARTS, differing_parts, parts_at
from packhorse.dataset.errors import PreparedDatasetError
from packhorse.dataset.exchange import aside_of, left_aside
from packhorse.dataset.files.append_stage import append_to_mixture
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
from packhorse.dataset.files.redact import read_ids_of, redact, takedown_text
from packhorse.dataset.files.takedown_file import (
    MOST_TAKEDOWN_BYTES,
    TAKEDOWN_SUFFIX,
    Redaction,
    SkipEntry,
    TakedownError,
    TakedownFile,
    parse_ids,
)
from packhorse.dataset.files.text_files import locked_folder, replace_text, text_of
from packhorse.dataset.keys import DuplicateKeyError, KeyRows, Keys, write_keys
from packhorse.dataset.layout import (
    DROPPED_GROUPS,
    GROUPS,
    INPUTS,
    MANIFEST,
    MEMBER_ORDER,
    MEMBERS,
    OVER_LENGTH,
    POOLS,
    SKIPPED,
    STARTS,
    datasets_below,
)
from packhorse.dataset.load import PreparedDataset, open_prepared
from packhorse.dataset.lock import LOCK, locked
from packhorse.dataset.manifest import (
    MOST_LISTED,
    GroupRecord,
    InputRecord,
    Inputs,
    Keep,
    KeyRecord,
    Manifest,
    OverLength,
    OverLengthLedger,
    PrepareOptions,
    SkippedRow,
    SkippedRows,
)
from packhorse.dataset.replaceable import refuse_holding, refuse_output
from packhorse.dataset.seqpack_layout import (
    Loaded,
    is_seqpack_layout,
    load_seqpack_layout,
    pools_by_length,
    write_seqpack_layout,
)
from packhorse.dataset.verify import Difference, LengthReport, LengthsOf, verify_files, verify_lengths
from packhorse.dataset.versions import Version, find_version, link_versions, prune_version, versions_of
from packhorse.dataset.whole import sync, written_whole
from packhorse.dataset.write import read_records, seal, write_records

__all__ = [
    "DROPPED_GROUPS",
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
    "SKIPPED",
    "STARTS",
    "TAKEDOWN_SUFFIX",
    "ComponentEntry",
    "Difference",
    "DuplicateKeyError",
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
    "PrepareOptions",
    "PreparedDataset",
    "PreparedDatasetError",
    "Redacted",
    "Redaction",
    "SkipEntry",
    "SkippedRow",
    "SkippedRows",
    "StageEntry",
    "Takedown",
    "TakedownError",
    "TakedownFile",
    "Version",
    "append_to_mixture",
    "aside_of",
    "create_array",
    "datasets_below",
    "differing_parts",
    "find_version",
    "growing_array",
    "is_seqpack_layout",
    "left_aside",
    "link_versions",
    "load_seqpack_layout",
    "locked",
    "locked_folder",
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
    "replace_text",
    "seal",
    "sync",
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
