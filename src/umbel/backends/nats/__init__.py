"""NATS: a JetStream stream for each lane. It carries messages for a job store elsewhere."""
