"""The processes of a cluster: sockets, files and clocks around the pure state machines of `hawser.log`."""
