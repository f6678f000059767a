-- Delete the rows of `held`, each of which is of an acknowledged item: where it is, and its token. A
-- put may have left a value behind the item just now, or the row may be of another item by now, so
-- all of it must still hold.
gone AS (
    DELETE FROM lkq.items i USING held h
    WHERE i.ctid = h.at AND i.token = h.token AND i.behind = 0
        AND (i.due IS NULL OR i.due > now_)
    RETURNING h.n, i.id, i.queue, i.key, i.priority, i.attempt, i.put_at, i.history, i.kind
)
