"""What tests share: one module for each idea. A test file imports from here, never from another test file."""
