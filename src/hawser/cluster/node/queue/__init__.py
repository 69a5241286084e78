"""The queues that a node leads: `delivery.QueueDelivery` serves their consumers, and
`dead_letter_forwarder.DeadLetterForwarder` sends dead letters to queues of other names."""
