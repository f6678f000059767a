i.id, i.state, i.priority, i.place, i.turn, i.attempt, i.due, i.not_before, i.token, i.history,
i.next_id, i.next_priority, i.next_not_before, false
