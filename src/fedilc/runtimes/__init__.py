"""How requests reach silos."""
