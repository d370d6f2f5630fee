"""What can be wrong with a prepared folder."""


class PreparedDatasetError(ValueError):
    """A prepared folder is missing, truncated, altered or inconsistent; the message says what and where."""
