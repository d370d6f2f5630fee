"""Exporting the bins of an epoch to files, for loaders that read files instead of a stream."""

from packhorse.export.files import FILE_FORMATS, export_epoch

__all__ = ["FILE_FORMATS", "export_epoch"]
