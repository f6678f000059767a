"""`LeasedKeyQueue`: the model in one event loop, with the callers that wait.

`queue` has the class, `waiters` the lines of waiting callers, `loop_affinity` the rule that a queue
belongs to one event loop. The folder imports `model`; queues on stores use its lines of producers
and its rule. Begin with `queue`.
"""
