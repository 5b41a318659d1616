"""What users and drivers test with: the storage conformance suite, faults, and pytest fixtures."""
