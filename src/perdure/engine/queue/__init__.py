"""Decide what a thread does next, and record what its runs did: messages, runs and leases, questions, timers,
crons, replies, events and side effects."""
