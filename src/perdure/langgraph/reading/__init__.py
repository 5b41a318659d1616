"""Show threads to people: steps, messages, questions and states."""
