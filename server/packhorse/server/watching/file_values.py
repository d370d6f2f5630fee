"""The values of the gauges about files: which files are wrong, and when certificates and tokens expire.

Owns collecting them from the parts that read the files. The gauges are in `metrics`.
"""

from collections.abc import Callable

from packhorse.server.access.bearer_tokens import TokenFile
from packhorse.server.access.tls import Certificates
from packhorse.server.datasets.corpora import Corpora
from packhorse.server.datasets.mixtures import Mixtures
from packhorse.server.watching.metrics import EXPIRY, UNUSABLE_FILES, FileValues


def file_values(
    mixtures: Mixtures, corpora: Corpora, tokens: TokenFile | None, certificates: Certificates | None
) -> dict[str, Callable[[], FileValues]]:
    """Returns for each gauge of `metrics.FILE_GAUGES` the function that computes its values at a scrape."""

    def unusable() -> FileValues:
        access_files = (("tokens", tokens), ("certificates", certificates))
        # A value's labels are (kind, name); a server has one of each of these, so they need no name.
        of_access = [(kind, "") for kind, files in access_files if files is not None and files.trouble]
        return dict.fromkeys([*mixtures.troubles(), *corpora.troubles(), *of_access], 1)

    def expiries() -> FileValues:
        times: dict[tuple[str, str], float] = {}
        for kind, files in (("token", tokens), ("certificate", certificates)):
            if files is not None:
                times |= {(kind, name): at for name, at in files.expiries().items()}
        return times

    return {UNUSABLE_FILES: unusable, EXPIRY: expiries}
