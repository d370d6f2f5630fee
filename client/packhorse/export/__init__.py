"""An epoch's plan as files, for loaders that read a plan instead of a stream."""

from packhorse.export.files import FILE_FORMATS, export_epoch

__all__ = ["FILE_FORMATS", "export_epoch"]
