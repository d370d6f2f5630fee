"""The page of error reasons and exceptions, from the protocol's comments and the exceptions' docstrings."""

import re

from pages import ROOT

from reference.docstrings import read_docstring
from reference.markdown import UndocumentedError, cell, page, table


def reasons() -> dict[str, tuple[str, str]]:
    """Reason → (gRPC status, what the protocol says of it)."""
    text = (ROOT / "proto/packhorse/v1/packing.proto").read_text()
    body = re.search(r"enum ErrorReason \{(.*?)\n\}", text, re.DOTALL)
    assert body is not None
    found: dict[str, tuple[str, str]] = {}
    comment: list[str] = []
    for line in body[1].strip().splitlines():
        if line.strip().startswith("//"):
            comment.append(line.strip().removeprefix("//").strip())
        elif name := re.match(r"\s*ERROR_REASON_(\w+) =", line):
            status, colon, meaning = " ".join(comment).partition(": ")
            if colon:
                found[name[1]] = (status, meaning)
            elif name[1] != "UNSPECIFIED":
                raise UndocumentedError(f"error reason {name[1]} has no comment in the protocol")
            comment = []
    return found


def errors_page() -> str:
    from packhorse.client import errors
    from packhorse.v1 import packing_pb2

    of_reason = {
        packing_pb2.ErrorReason.Name(number).removeprefix("ERROR_REASON_"): found.__name__
        for number, found in errors.EXCEPTION_OF_REASON.items()
    }
    classes = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, errors.PackhorseError)]
    for found in classes:
        read_docstring(found.__name__, found.__doc__)
    return page(
        "Every error reason and exception",
        "What to do about each is in [Troubleshooting](troubleshooting.md).",
        "## Reasons of the service\n",
        "A reason travels in `google.rpc.ErrorInfo`, with the domain `packhorse.v1`. Clients branch on it, never "
        "on text.\n",
        table(
            ("reason", "gRPC status", "exception in Python", "meaning"),
            [
                (f"`{name}`", status, f"`{of_reason[name]}`", cell(meaning[:1].upper() + meaning[1:]))
                for name, (status, meaning) in reasons().items()
            ],
        ),
        "## Exceptions of the client\n",
        table(
            ("exception", "is a", "meaning"),
            [
                (
                    f"`{c.__name__}`",
                    ", ".join(f"`{b.__name__}`" for b in c.__bases__),
                    cell(c.__doc__.split("\n\n")[0]),
                )
                for c in classes
            ],
        ),
    )
