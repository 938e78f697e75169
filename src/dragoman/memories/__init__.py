"""Memories: what callers want to find again. The port to where it is kept, its tables, and the `memory_*` tools."""
