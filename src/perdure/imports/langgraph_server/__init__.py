"""Move threads and a store from a server that speaks LangGraph's HTTP API, and to it."""
