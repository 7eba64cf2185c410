"""robattr."""
