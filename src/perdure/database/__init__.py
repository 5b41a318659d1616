"""Open databases: by URL, with the same operations for programs with and without an event loop."""
