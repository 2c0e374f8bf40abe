"""The paper's protocol over HTTP: a coordinator, and silos that join from behind their firewalls."""
