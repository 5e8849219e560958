"""One reader for each format: from a file to tables that are not linked yet."""
