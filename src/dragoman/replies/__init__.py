"""How outcomes are worded, one dialect a file."""
