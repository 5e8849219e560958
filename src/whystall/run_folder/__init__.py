"""The one owner of a run folder: its file names, the schemas of what they hold, and whose files may be removed.

Those who write (`capture`) and those who read (`trace`, the public API, the command line, `verify`, the MCP server) ask
here.
"""
