"""What operators see: calls, logs, metrics, activity, traces, connections, and health."""
