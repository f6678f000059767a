"""What happens, and what has happened: the `feed` of events, and the `series` of minute values.

Workers write both (`lanes/durable/reports`); of queues without workers, `queue_looks` compares two
looks. Begin with `feed`.
"""
