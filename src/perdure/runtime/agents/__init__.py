"""Load graphs and make them ready for a run: factories, users and contexts."""
