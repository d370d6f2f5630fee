"""Checking runs and servers: audits of epochs, components and tokens, diagnosis, health, and activity.

Names are listed in `__init__.pyi`, and each is loaded when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
