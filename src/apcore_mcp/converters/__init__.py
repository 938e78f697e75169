"""From apcore's modules to the tools of others."""
