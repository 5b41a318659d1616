"""Show threads and stored items to LangGraph: its checkpointer and store, as programs of the engine."""
