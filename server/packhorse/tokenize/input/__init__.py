"""Reading input: from the files that users name, through ranges of files, to rows and texts."""
