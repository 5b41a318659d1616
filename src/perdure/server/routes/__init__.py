"""The routes of the API, a module for each kind of thing that they are about."""
