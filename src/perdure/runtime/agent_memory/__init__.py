"""Carry the memory of a user and the window of a conversation into a run and out of it."""
