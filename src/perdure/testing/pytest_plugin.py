"""Pytest fixtures for projects that use Perdure."""
