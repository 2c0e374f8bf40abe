"""The eICU benchmark: raw tables, medicines, silos, and synthetic patients."""
