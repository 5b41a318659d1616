"""What Aegra's end-to-end tests need beside their own graphs: a model, routes, and the server's address."""
