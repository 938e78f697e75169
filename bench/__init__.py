"""Dragoman beside a bare loop, the official SDK and FastMCP: `python -m bench`."""
