"""Graphs, routes and an auth handler with the names and the behaviour that langgraphjs' suites expect."""
