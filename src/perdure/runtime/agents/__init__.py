"""Load graphs and make them ready for a run: factories, users, contexts and plans of a deploy."""
