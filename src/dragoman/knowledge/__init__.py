"""Trees of documents: the port to where they are kept, the actions that change them, and who may do what."""
