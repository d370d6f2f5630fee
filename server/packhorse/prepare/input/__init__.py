"""Input: files, folders, URLs and Python objects as ranges of rows with a length and an id each."""

from packhorse.prepare.input._base import InputFile, Opened, Reader, RowRange, changed, cut
from packhorse.prepare.input._rows import MOST_RESOURCE, Batch, Fault, InputColumns, OnBadRow, RawRows, Resource
from packhorse.prepare.input._tables import KeyColumn
from packhorse.prepare.input.find import READERS, Found, find_inputs
from packhorse.prepare.input.npy import load_npy, map_array, open_held

__all__ = [
    "MOST_RESOURCE",
    "READERS",
    "Batch",
    "Fault",
    "Found",
    "InputColumns",
    "InputFile",
    "KeyColumn",
    "OnBadRow",
    "Opened",
    "RawRows",
    "Reader",
    "Resource",
    "RowRange",
    "changed",
    "cut",
    "find_inputs",
    "load_npy",
    "map_array",
    "open_held",
]
