"""Following a text from the row through a template: which characters come from where."""
