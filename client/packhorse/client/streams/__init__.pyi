"""The names of `packhorse.client.streams`, each loaded when it is first asked for."""

from .answers import Component as Component
from .answers import DatasetInfo as DatasetInfo
from .answers import Redaction as Redaction
from .answers import SequenceLocation as SequenceLocation
from .answers import Stage as Stage
from .answers import StreamHeader as StreamHeader
from .answers import Takedown as Takedown
from .answers import TakenPositions as TakenPositions
from .blocks import BinBlock as BinBlock
from .costs import cost_linear_of as cost_linear_of
from .cursor import Cursor as Cursor
from .pack_stream import PackStream as PackStream
from .stream import BinStream as BinStream
