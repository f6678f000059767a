i.id, i.state, i.priority, i.place, i.turn, i.attempt, i.due, i.not_before, i.token, i.history,
i.behind, i.line_from, NULL::bigint
