"""MCP with no I/O: bytes in, events out; values in, bytes out."""
