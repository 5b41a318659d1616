"""A chat page over one durable file: the shortest way to see a conversation outlive ``kill -9``.

One process holds everything: the database file, a LangGraph agent, a small chat model and the page in the
browser. The package decides how the demo looks and what it promises on screen; what makes the promise true is
the checkpointer, used here exactly as any other program would use it.
"""
