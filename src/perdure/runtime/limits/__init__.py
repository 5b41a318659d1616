"""Limits over all processes, on the side of one process: its shares, the calls that wait, and calls within
nodes."""
