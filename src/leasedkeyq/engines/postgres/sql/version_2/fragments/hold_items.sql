-- Lock the live items of `u`, in its order: two calls that lock the same keys cannot wait for each
-- other in a circle.
CROSS JOIN LATERAL (
    SELECT FROM lkq.items i WHERE i.queue = u.queue AND i.key = u.key FOR UPDATE
) held;
