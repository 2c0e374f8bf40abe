"""The runtimes: how requests reach silos."""
