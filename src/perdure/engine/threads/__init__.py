"""Decide what a thread holds: checkpoints and writes, the chunks that carry their values, and the head."""
