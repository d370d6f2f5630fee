"""Reaching the service: transports, streams, retries, cursors. No torch."""
