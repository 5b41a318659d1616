"""Decide what runs next in a thread: messages, runs and leases, questions, retries, timers, the outbox."""
