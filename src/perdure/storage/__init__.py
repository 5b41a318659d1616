"""The storage port and its drivers. A driver executes; it decides nothing."""
