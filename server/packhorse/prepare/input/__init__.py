"""Input: files, folders, URLs and Python objects as ranges of rows, each with a length and an id.

Only re-exports. `_base` has what every kind of input has in common, `find` the list of kinds, each in a module of its
own.
"""

from packhorse.prepare.input._base import InputFile, Opened, Reader, RowRange, changed, cut_rows
from packhorse.prepare.input._columns import MOST_AMOUNT, MOST_COST, InputColumns, OnBadRow, Resource
from packhorse.prepare.input._key_columns import KeyColumn
from packhorse.prepare.input._rows import Batch, Fault, RawRows
from packhorse.prepare.input.find import READERS, Found, Source, find_inputs, paths_of_inputs
from packhorse.prepare.input.held import open_held
from packhorse.prepare.input.npy import load_npy, map_array

__all__ = [
    "MOST_AMOUNT",
    "MOST_COST",
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
    "Source",
    "changed",
    "cut_rows",
    "find_inputs",
    "load_npy",
    "map_array",
    "open_held",
    "paths_of_inputs",
]
