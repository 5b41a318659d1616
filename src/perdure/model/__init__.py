"""Pure decisions over plain data: no clock, no randomness, no client, nothing but the standard library."""
