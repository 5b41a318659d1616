"""Answers for people who run agents: which runs failed and why, what waits for an answer, where a thread is,
how it is going, and what a deploy would do. The command line and the inspector show the same answers."""
