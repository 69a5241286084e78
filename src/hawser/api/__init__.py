"""What users touch: the bus, its topics, publishers, subscriptions and loans."""
