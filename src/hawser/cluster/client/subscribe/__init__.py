"""Reading topics: subscriptions, members of consumer groups, and reads of exact ranges."""
