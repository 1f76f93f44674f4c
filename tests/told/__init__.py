"""Sentences of the pages with the quantities of the records in place of their numbers; `test_told` compares."""
