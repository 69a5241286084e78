"""Transactions of a client: the workspace that stages operations, commit and rollback, and XA."""
