"""The report: one page that shows what was asked, what came out, and how far it agrees with the paper.

`contents` holds the values of a report, `figures` draws (it needs matplotlib, so import it where you draw), `page`
writes the page and the figures' own files.
"""
