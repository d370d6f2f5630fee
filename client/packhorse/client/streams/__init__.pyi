"""The names of `packhorse.client.streams`, each loaded when it is first asked for."""

from .answers import DatasetInfo as DatasetInfo
from .answers import SequenceLocation as SequenceLocation
from .answers import Stage as Stage
from .blocks import BinBlock as BinBlock
from .components import Component as Component
from .costs import cost_linear_of as cost_linear_of
from .cursor import Cursor as Cursor
from .pack_stream import PackStream as PackStream
from .stream import BinStream as BinStream
from .stream import StreamHeader as StreamHeader
from .takedown import Redaction as Redaction
from .takedown import Takedown as Takedown
from .takedown import TakenPositions as TakenPositions
