"""PostgreSQL: grouped requests over psycopg connections, functions in the database."""
