"""What `whystall mcp` serves: reports, findings and events of given folders, to a program that asks over stdio."""
