"""A server of several processes."""
