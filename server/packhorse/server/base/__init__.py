"""What every room of the server stands on: faults and their statuses, stamps of files, logs, and the machine."""
