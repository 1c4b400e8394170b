"""Tools that the model may call, from MCP servers. Without the package `mcp` nothing here but `offered` is imported."""
