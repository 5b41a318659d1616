"""What people who run agents ask of a database: which runs failed and why, what waits for an answer, where a
thread is, and how it is going. The command line and the inspector show the same answers."""
