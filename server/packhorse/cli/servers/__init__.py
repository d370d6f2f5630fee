"""Commands about servers that run: what is wrong with one, what they do now, and how much they can carry."""
