-- The item of the key `k` in the queue `q` is over, whose row is `r`: that goes, or the first of its line
-- begins anew in it.
IF r.behind = 0 THEN
    DELETE FROM lkq.items WHERE queue = q AND key = k;
ELSE
    t := lkq.promote_1(t, ARRAY[k], now_);
END IF;
