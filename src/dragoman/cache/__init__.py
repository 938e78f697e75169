"""The bounded cache."""
