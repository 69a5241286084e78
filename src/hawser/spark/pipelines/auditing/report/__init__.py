"""The audit as one HTML page."""
