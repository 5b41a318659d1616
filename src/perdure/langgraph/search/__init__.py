"""Search in the store by a query: the configuration, and the ranking of items by vectors and by words."""
