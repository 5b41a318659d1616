"""Test support for users and drivers: the storage conformance suite, faults, and pytest fixtures."""
