i.id, i.key, i.state::int, i.value, i.priority, i.attempt, i.put_at, i.place, i.due, '',
i.history::text, i.kind, i.leased_at, i.token, i.deadline, NULL::int, NULL::float8, false
