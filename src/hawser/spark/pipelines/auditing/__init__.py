"""The audit: evidence of every tier as runs, verdicts by arithmetic of ranges, and the document of both."""
