"""`whystall mcp` serves reports, findings and events of given folders to a client over stdio."""
