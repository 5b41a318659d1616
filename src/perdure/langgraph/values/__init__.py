"""Turn the values of a state into bytes, and bytes back into only the types that are allowed."""
