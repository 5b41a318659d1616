"""Threads and stores of other savers: read, verified and made visible here, and written back to them."""
