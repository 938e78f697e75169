"""The command line: parses, calls the application, prints."""
