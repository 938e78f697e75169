"""What a server offers besides tools: resources to read, prompts to get, and values that complete their arguments."""
