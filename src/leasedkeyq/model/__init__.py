"""The meaning of queues: pure, synchronous, without a clock and without I/O.

One queue is `state` (with its parts `items`, `ready`, `timers`, `deadlines`, `linkedlist`); a store
of many queues is `store_model` (with `queue_model`, `caps`, `urgency`, `edit`, `admission`). Both
are told the time. `requests` has the words of the store contract. The queue in memory, the memory
store and the file store are made of this, and the tests hold every other engine to it.

Everybody may import it; it imports only `errors`, `types`, `lease` and `checks`. Begin with
`state`.
"""

from leasedkeyq.model.linkedlist import DoublyLinkedList, Node
from leasedkeyq.model.state import QueueState

__all__ = ["DoublyLinkedList", "Node", "QueueState"]
