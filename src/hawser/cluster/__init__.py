"""The only place with sockets, files and clocks: what runs the pure state machines of `hawser.log`."""
