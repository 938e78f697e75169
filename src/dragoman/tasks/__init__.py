"""Calls that outlive their client: idempotency keys and MCP tasks, kept in the ledger."""
