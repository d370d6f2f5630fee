"""Ctrl-C in the middle of a stream of packing."""


class Interrupted:
    """A transport whose n-th response is lost with a KeyboardInterrupt, as Ctrl-C would."""

    target = "interrupted"
    has_answered = True

    def __init__(self, backend, at):
        self.backend, self.left = backend, at

    def stream(self, method, requests, timeout_seconds):
        for response in getattr(self.backend, method.name)(requests):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            yield response
