-- Something in the queue `p_queue` has come due, or waits in its inbox: as `floor_1` and
-- `inbox_has_items_1` say it, within another statement.
EXISTS (
    SELECT FROM lkq.items i WHERE i.queue = p_queue AND i.due <= now_ AND i.due >= coalesce((
        SELECT f.due FROM lkq.floors f WHERE f.queue = p_queue AND f.due <= now_
    ), '-infinity')
) OR EXISTS (
    SELECT FROM lkq.inbox b WHERE b.gate = p_lock AND b.xact >= coalesce((
        SELECT f.xact FROM lkq.inbox_floors f
        WHERE f.gate = p_lock AND f.xact <= pg_snapshot_xmax(pg_current_snapshot())
    ), '0')
)
