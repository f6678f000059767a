-- Where to begin to look in the inbox of the queue whose lock is `p_gate`: see the table `inbox_floors`.
-- The numbers of transactions begin anew where a dump was restored, which makes void what is known.
coalesce((
    SELECT f.xact FROM lkq.inbox_floors f
    WHERE f.gate = p_gate AND f.xact <= pg_snapshot_xmax(pg_current_snapshot())
), '0')
