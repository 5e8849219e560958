"""The one owner of a run folder: its file names, the schemas of their content, and the files that may be removed.

Writers (`capture`) and readers (`trace`, the public API, the command line, `verify`, the MCP server) use it.
"""
