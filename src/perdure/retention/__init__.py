"""Retention beside the programs that use the threads: removal of what has expired, and reads without it."""
