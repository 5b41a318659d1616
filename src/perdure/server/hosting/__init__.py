"""How a server comes up and goes down: in a process of its own, in several, or in another application."""
