"""`LeasedKeyQueue`: the model in one event loop, with the callers that wait.

`queue` has the class, `waiters` the lines of waiting callers, `loop_affinity` the rule that a queue
belongs to one event loop. It imports `model`; nothing but the package itself imports it. Begin with
`queue`.
"""
