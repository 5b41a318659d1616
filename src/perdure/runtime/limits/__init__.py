"""Limits that processes share, as a process keeps them: its shares, who waits, and calls within nodes."""
