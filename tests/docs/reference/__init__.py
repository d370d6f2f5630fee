"""The reference pages, written from the code: a file for each kind of page, and one for what they share."""
