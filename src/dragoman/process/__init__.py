"""A server that has the process to itself."""
