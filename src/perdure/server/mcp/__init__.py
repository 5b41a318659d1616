"""Assistants as tools of the Model Context Protocol. Its modules need the extra ``perdure[mcp]``."""
