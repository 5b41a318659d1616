"""Say which address serves what: LangGraph's API, the protocols between agents, the pages and the health
checks."""
