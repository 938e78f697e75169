"""A page that shows the tools, and runs them."""
