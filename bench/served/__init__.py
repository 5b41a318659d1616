"""Servers that graphs are put behind, how each is installed and started, and the client that loads them."""
