"""What a prepared folder records about its input: files, names and tokens in the manifest, lists and keys beside it."""
