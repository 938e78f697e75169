"""What the official SDK does for the server; imported when it is first needed."""
