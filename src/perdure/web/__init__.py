"""Serve HTTP safely whatever is served: sockets, how long a client may take, static pages, a guard against
foreign pages."""
