"""Decide how a request becomes a run: its arguments, terms, thread, schedule and notices of its end."""
