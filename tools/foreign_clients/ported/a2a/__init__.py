"""What the A2A kit's tests talk to: an agent, and its application."""
