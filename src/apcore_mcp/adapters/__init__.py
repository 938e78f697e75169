"""From apcore's terms to those of MCP: schemas, annotations, errors, names."""
