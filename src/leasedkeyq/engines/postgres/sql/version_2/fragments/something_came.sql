-- Whether something in the queue `q`, of which `f` is the floor, has come due, or waits in its inbox.
EXISTS (
    SELECT FROM lkq.items i WHERE i.queue = q AND i.due >= f.due AND i.due <= now_
) OR EXISTS (
    SELECT FROM lkq.inbox b WHERE b.gate = p_gate AND b.xact >=
        --> include inbox_floor
)
