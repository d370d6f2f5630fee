"""A tf.data service: a dispatcher and one worker, which ends with its standard input.

Owns the server that the peer of that name streams from; run by it as a process of its own.
"""

import sys

import tensorflow as tf

if __name__ == "__main__":
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher.target.partition("://")[2]))
    print(dispatcher.target, flush=True)
    sys.stdin.read()
