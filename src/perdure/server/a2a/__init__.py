"""Assistants as agents of the A2A protocol. Its modules need the extra ``perdure[a2a]``."""
