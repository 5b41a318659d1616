"""Redis and Valkey: Lua scripts, one server or a cluster."""
