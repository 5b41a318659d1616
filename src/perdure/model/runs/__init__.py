"""Decide what becomes of messages, runs and questions: the states and what each event makes of them."""
