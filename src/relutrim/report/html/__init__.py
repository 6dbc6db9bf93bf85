"""The report: one self-contained HTML file that a person can open, print, or attach to a pull request."""
