"""Chat page over one durable file, which shows that a conversation survives ``kill -9``.

One process holds everything: the database file, a LangGraph agent, a small chat model and the page in the
browser. The durability comes from the checkpointer and runtime, used here as in any other program.
"""
