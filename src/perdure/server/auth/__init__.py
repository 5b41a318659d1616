"""Authentication and authorisation of requests."""
