"""Users' tables: read files, summarise silos, fit the preprocessing, and make silos of the rows.

Reading: `formats` (CSV as programs write it, Excel, Stata, SPSS and others), `file_reader` (any of these,
Parquet or NPZ), `column_values` (a column as numbers or names), `label_rule` (a row's label).
Examining, for the sources "tables" and "files": `numeric_files`; the settings are in `table_settings`.
Preparing: `silo_tables`, summarised by `silo_summary`, converted to inputs by `preprocessing`, and commented
on by `table_notes`; without it (`scale = false`), all cells are numbers and are used as they are.
Predictions: `prediction_rows`, the new rows that a trained model is given.
"""
