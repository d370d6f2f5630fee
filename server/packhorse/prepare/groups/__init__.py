"""Groups of rows: which rows belong together, their tables, and what comes twice."""
