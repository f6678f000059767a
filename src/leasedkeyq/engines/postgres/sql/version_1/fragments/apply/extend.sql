until := now_ + (run->>'lease')::float8;
UPDATE lkq.items SET due = until WHERE queue = q AND key = k;
said := said || jsonb_build_array(first, 'is', until);
-- Who waits has to know of what comes due earlier than it would have.
hot := hot OR until < coalesce(r.due, 'infinity');
