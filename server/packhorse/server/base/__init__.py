"""What every room of the server uses: faults, logs, time slices, the machine's limits, and workarounds."""
