"""The agents of the servers that are killed."""
