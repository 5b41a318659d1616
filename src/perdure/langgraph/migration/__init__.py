"""Read what an older version of a graph stored as its present version would have stored it."""
