"""Where bytes meet calls."""
