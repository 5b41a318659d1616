"""Tables, statements and migrations that SQLite, D1 and PostgreSQL share."""
