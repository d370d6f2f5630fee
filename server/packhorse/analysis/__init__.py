"""Figures about prepared datasets, plans and servers, for commands, Python and other pages.

Start with `dataset_report`, `compare_packers` and `activity_between`. Names are listed in `__init__.pyi` and loaded
when first used, because `activity_between` needs no package of the server. `packhorse.analysis.plots` needs Matplotlib,
and is imported by name.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
