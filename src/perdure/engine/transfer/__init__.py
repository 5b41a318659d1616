"""Bring threads, items and histories from another database or format, and take them there."""
