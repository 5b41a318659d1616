"""Who asks, and what that user may see and do."""
