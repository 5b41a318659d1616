"""Threads as their clients see them: records, order, search, and their life from creation to removal."""
