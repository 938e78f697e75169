"""Registries as servers: tools made of modules, calls routed to their executor, and serving."""
