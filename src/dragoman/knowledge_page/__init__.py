"""The page to read documents with: the tree, each document and its history, and search."""
