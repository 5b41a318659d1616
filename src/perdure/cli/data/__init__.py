"""Commands on stored data as a whole: move it, check it, migrate it, remove it."""
