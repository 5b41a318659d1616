"""Backends that speak SQL: one schema and one compiler from operations to statements, a driver each."""
