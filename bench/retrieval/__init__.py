"""Retrieval on a corpus of dialogues: how often a search finds the message that answers a question."""
