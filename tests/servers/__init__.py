"""The real servers that tests run against: started on first use, private to this process, gone with it."""
