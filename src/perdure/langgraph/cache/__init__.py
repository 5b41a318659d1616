"""A cache of decoded values that the process has read or written, returned as copies."""
