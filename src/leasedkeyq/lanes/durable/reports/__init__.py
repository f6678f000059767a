"""What a worker tells those who look: minute values, events, and where a command is.

`minute_writer` writes the values of `minutes`. `event_publisher` writes the events of
`event_batches`, while somebody listens. `stack_answers` answers where a command is. `kept` keeps
them for a while. Begin with `minute_writer`.
"""
