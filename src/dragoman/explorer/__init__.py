"""The explorer: a page to look at the tools and to try them."""
