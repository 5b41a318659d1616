"""Routes of the LangGraph API."""
