"""Bins by index, for `PackedBins`: what an index means, the requests for bins, and the rows that are made of them."""
