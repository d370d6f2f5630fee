"""The names of `packhorse.proof`, each loaded when it is first asked for."""

from .activity import ServerActivity as ServerActivity
from .activity import StreamActivity as StreamActivity
from .activity import ask_activity as ask_activity
from .component_audit import ComponentReport as ComponentReport
from .doctor import Finding as Finding
from .doctor import diagnose as diagnose
from .epoch_audit import AuditReport as AuditReport
from .epoch_audit import EpochOfStreams as EpochOfStreams
from .health import ask_health as ask_health
from .token_audit import TokenAudit as TokenAudit
from .token_audit import TokenReport as TokenReport
