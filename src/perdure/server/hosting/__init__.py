"""Start and stop of a server: in a process of its own, in several, or inside another application."""
