"""Tools that every server has."""
