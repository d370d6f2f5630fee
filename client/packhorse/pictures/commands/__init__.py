"""The command `packhorse show`, and printing sequences with their trained tokens marked."""
