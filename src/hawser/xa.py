"""Distributed transactions with an outside coordinator: names for `Bus.xa`."""

from hawser.api.xa import XA, AsyncXA, XAError, Xid

__all__ = ["XA", "AsyncXA", "XAError", "Xid"]
