"""The inspector: pages and a JSON API that show threads, their history, their queue and their storage."""
