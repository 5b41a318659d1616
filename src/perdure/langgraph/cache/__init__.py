"""Decide what of a value is known already: remember a process's threads, encode against that, and
decode copies."""
