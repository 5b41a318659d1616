"""Show threads to people: steps, messages, questions and states, and the picture of a graph."""
