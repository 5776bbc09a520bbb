"""Inside a worker: the gate, the lines it watches, and the messages it puts there and takes."""
