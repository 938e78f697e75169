"""MCP over HTTP: both protocol eras at one endpoint."""
