"""What values may be: JSON Schema made from types, checked, explained, and written for other APIs."""
