"""What runtimes with silos elsewhere share: the manifest, messages as bytes, and a silo's own side."""
