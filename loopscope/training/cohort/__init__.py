"""Training many small models or maps at once."""
