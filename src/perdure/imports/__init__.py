"""Import of threads and stores from other savers: a module for each source, and the plan they share."""
