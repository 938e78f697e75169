"""The public conformance suite of MCP against examples/conformance.py, in both eras."""
