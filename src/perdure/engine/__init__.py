"""Use cases as programs over effects: what to read, what to decide, what to commit. No I/O here."""
