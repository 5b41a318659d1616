"""Decide what a store holds: items by namespace and key, their expiry, and the index that finds them."""
