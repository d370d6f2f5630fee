"""Batches: where sequences lie in rows, and the tensors made from that.

The names are listed in `__init__.pyi`; each is loaded when it is first asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
