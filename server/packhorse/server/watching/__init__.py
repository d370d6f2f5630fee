"""Observing the server: calls, logs, metrics, activity, traces, connections, and health."""
