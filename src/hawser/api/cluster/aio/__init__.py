"""The asynchronous API over a cluster."""
