"""Ways in which requests reach silos."""
