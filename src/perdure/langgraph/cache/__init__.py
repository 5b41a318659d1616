"""Decide which parts of a value are stored already: remember a process's threads, encode values against
these, and decode copies."""
