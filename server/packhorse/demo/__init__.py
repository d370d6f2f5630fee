"""The demo: from text to training on one machine, with a server that is killed on the way.

The command is in `commands/demo`, its text is in `corpus`, and a rank of the training is in `trainer`.
"""
