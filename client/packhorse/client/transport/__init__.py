"""Transports: how a client reaches the service, over gRPC or in this process, with credentials, retries and errors.

Nothing here needs torch.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's core writes to stderr by itself what our errors say better
