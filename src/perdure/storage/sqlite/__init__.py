"""SQLite: one file, one writer thread, readers beside it."""
