"""The report page: its values, figures, tables."""
