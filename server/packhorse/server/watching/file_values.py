"""The values of the gauges about files: which files are wrong, and when certificates and tokens expire.

Owns collecting them from the parts that read the files. The gauges are in `metrics`.
"""

from collections.abc import Callable

from packhorse.server.access.bearer_tokens import TokenFile
from packhorse.server.access.tls import Certificates
from packhorse.server.datasets.corpora import Corpora
from packhorse.server.datasets.mixtures import Mixtures
from packhorse.server.watching.metrics import EXPIRY, UNUSABLE_FILES, Values


def file_values(
    mixtures: Mixtures, corpora: Corpora, tokens: TokenFile | None, certificates: Certificates | None
) -> dict[str, Callable[[], Values]]:
    """Returns for each gauge of `metrics.FILE_GAUGES` the function that computes its values at a scrape."""

    def unusable() -> Values:
        kinds = (("tokens", tokens), ("certificates", certificates))
        others = [(kind, "") for kind, files in kinds if files is not None and files.trouble]
        return dict.fromkeys([*mixtures.troubles(), *corpora.troubles(), *others], 1)

    def expiries() -> Values:
        kinds = (("token", tokens), ("certificate", certificates))
        return {(kind, name): at for kind, files in kinds if files is not None for name, at in files.expiries().items()}

    return {UNUSABLE_FILES: unusable, EXPIRY: expiries}
