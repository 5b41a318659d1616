"""Decide which records are removed, and remove them: those that policies do not keep, expired ones, and whole
threads."""
