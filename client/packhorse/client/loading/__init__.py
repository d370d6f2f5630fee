"""Loading: a dataset's batches, made in workers and copied to the device."""
