"""A study over silos that join over HTTP: the coordinator's side, and a silo's side."""
