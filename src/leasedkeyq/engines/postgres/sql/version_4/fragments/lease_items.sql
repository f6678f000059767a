-- Lease the rows of `chosen`, which are locked. This is the only place where a lease begins. Its token
-- names the call, so that a client that has lost the answer finds what it has claimed, and ends with the
-- holder, if the claim has told one; the fences are in the order of the rows.
UPDATE lkq.items i SET state = 2, attempt = i.attempt + 1, due = now_ + c.lease,
    turn = -c.fence, leased_at = now_, counted = c.counted,
    token = p_call || '.' || c.n || '.' || md5(p_secret || c.fence) || c.tail
FROM chosen c WHERE i.ctid = c.at
RETURNING c.n, i.queue, i.key, i.value, i.id, i.token, c.fence, i.attempt, i.priority, i.due,
    i.put_at, i.kind, i.deadline, i.ctid::text, NULL::text;
