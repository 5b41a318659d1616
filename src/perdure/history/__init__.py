"""Conversations as plain messages: a history for each session, without checkpoints."""
