"""Records: what the manifest says of the input, and the lists and keys beside it."""
