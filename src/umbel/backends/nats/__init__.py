"""NATS: a JetStream stream for each lane. It carries messages for a store elsewhere."""
