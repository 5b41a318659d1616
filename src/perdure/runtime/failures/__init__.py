"""Say where a run failed and why, without what a user wrote."""
