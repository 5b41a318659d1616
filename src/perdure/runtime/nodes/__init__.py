"""Serve what a node asks for while it runs: effects, steering, nested graphs and calls of models."""
