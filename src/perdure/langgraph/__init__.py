"""The façade that LangGraph sees: a native checkpoint saver over the engine."""
