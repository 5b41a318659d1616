"""Cloudflare D1: batches of SQLite statements over HTTP."""
