"""A small Django project, and what it does with messages."""
