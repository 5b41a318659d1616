"""Decide what goes and remove it: what policies let go, what has expired, and whole threads."""
