"""Use cases as programs over effects: what to read, what to decide, what to commit. No input or output here."""
