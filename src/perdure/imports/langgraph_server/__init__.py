"""Import from a server that speaks LangGraph's HTTP API: its threads and store as a source of an import."""
