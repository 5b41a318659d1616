"""Use cases as programs over effects: reads, decisions and commits, without I/O of their own."""
