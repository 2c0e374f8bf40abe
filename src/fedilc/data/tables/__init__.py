"""Users' tables: read files, summarise silos, fit the preprocessing, and make silos of the rows."""
