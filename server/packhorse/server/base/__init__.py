"""For all packages of the server: faults, logs, time slices, the machine's limits, and workarounds."""
