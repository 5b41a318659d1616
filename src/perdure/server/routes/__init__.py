"""Map addresses to their handlers: LangGraph's API, the protocols between agents, the pages and the health
checks."""
