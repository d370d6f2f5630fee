"""Pages of a Parquet file: the lengths of the lists in them, found without their tokens."""
