"""The workloads. Each is handed a `Desk` and returns what goes into the results."""
