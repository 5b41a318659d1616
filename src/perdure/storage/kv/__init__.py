"""Backends that store values by key: one layout of keys and records, a driver each."""
