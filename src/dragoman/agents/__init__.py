"""Agents: what handles messages one at a time, and the ledger that keeps what was accepted."""
