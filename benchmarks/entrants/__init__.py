"""Who is compared, a module for each server that carries jobs."""

from benchmarks.entrants import databases, nats, rabbitmq, redis

SYSTEMS = (*databases.SYSTEMS, *redis.SYSTEMS, *rabbitmq.SYSTEMS, *nats.SYSTEMS)

NOTES = {"Redis": redis.NOTES, "RabbitMQ": rabbitmq.NOTES, "NATS": nats.NOTES}
"""What has to be known besides, by what carries the jobs: above all who could not be measured."""

__all__ = ["NOTES", "SYSTEMS"]
