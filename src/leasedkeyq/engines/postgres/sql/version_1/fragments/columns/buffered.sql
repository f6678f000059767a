i.next_id, i.key, 3, i.next_value, i.next_priority, 0, i.next_put_at, 0::bigint,
i.next_not_before, '', NULL, i.next_kind, NULL::float8, NULL, i.next_deadline, NULL::int
