"""What the MCP kit's scenarios talk to: a tool for each that an agent can be."""
