"""Loading: a dataset's batches, in workers and on the device."""
