-- Ending leases, and the other changes of what is there. A refusal is a table: {'lease'}, or that of a put.
local REFUSED_LEASE = { 'lease' }
local held, held_item, keep_result, remove, follow

if acks then
  -- The lease record and the item that a token holds.
  function held(queue, key, token)
    local lease = call('HGET', queue.l, key)
    return lease and token ~= '' and sub(lease, 25) == token and lease
  end

  -- The attempt that a lease stands for is counted when the lease ends.
  function held_item(queue, key)
    local item = unpack_item(call('HGET', queue.i, key))
    item.attempt = item.attempt + 1
    return item
  end

  -- A result is the item with another value; the item itself may still be needed.
  function keep_result(queue, key, item, keep, result, outcome, how)
    if keep > 0 then
      local kept = {}
      for name, value in pairs(item) do
        kept[name] = value
      end
      kept.value, kept.due, kept.place, kept.state = result, now + keep, now, outcome
      set_aside(queue, 'd', key, '', kept, kept.due, how)
    end
  end

  -- The key has no item any more.
  function remove(queue, key)
    queue.changed = true
    hdel(queue.i, key)
    zrem(queue.o, key)
  end

  -- The head is over: this first value of its line begins anew in its place, at the back. `how`: see `insert` in
  -- input.lua. It leaves the line after that: should the call meet damage, a repair finds it.
  local function begin(queue, key, first, how)
    local due = first.due > now and first.due or 0
    if due ~= 0 then
      expect(queue, due)
    end
    insert(how, queue.base, key, first.value, first.kind, first.id, next_number(queue), first.priority, due,
      first.deadline, false, first.put_at)
  end

  -- The head is over: the first of its line follows it, or the key has no item any more.
  function follow(queue, key)
    local first = first_in_line(queue, key)
    if not first then
      return remove(queue, key)
    end
    begin(queue, key, first, write)
    leave_line(queue, key, first)
  end

  -- The keys of acknowledged items, which the next flush removes from three places.
  local function gather_gone(queue)
    local gone = {}
    pending[#pending + 1] = { 'HDEL', queue.l, gone, queue }
    pending[#pending + 1] = { 'HDEL', queue.i, gone, queue }
    pending[#pending + 1] = { 'ZREM', queue.o, gone, queue }
    queue.gone = gone
    return gone
  end

  local SMALL = 1024 -- bytes of a value in line that is named to remove it, so that many go by one command

  -- The same for an item that the first of its line follows. Before the first of them comes a write that needs no
  -- memory, and behind it nor do the others; it fails if the others could not be written.
  local function gather_following(queue, key, first)
    if not queue.followed then
      call('HDEL', queue.i, '')
      queue.followed = {}
    end
    queue.followed[key] = true
    gather('HDEL', queue.l, key)
    -- Leases leave `t` together, so what comes due later goes there on its own.
    begin(queue, key, first, first.due > now and call or gather)
    if #first.member <= SMALL then
      gather('ZREM', queue.n, first.member)
      queue.left_line = true
    else
      take_out(queue, key, first)
    end
    gather('ZREM', queue.p, line_member(key, first.id))
  end

  -- {'ack', name, key, token, result, keep, outcome}. Acknowledged items go together with those of the next
  -- requests, and the first values of their lines come with those of other lines.
  function verbs.ack(request)
    local queue, key, result, keep = at(request[2]), request[3], request[5], request[6]
    local lease = held(queue, key, request[4])
    if not lease or (queue.gone and queue.gone[key]) or (queue.followed and queue.followed[key]) then
      return REFUSED_LEASE
    end
    if keep > 0 then
      keep_result(queue, key, held_item(queue, key), keep, result, request[7], not journal and gather)
    end
    if journal then
      end_lease(queue, key, lease)
      follow(queue, key)
      return 1
    end
    local first = queue.lined and first_in_line(queue, key)
    local fence, _, expires = sunpack('>ddd', lease)
    if queue.kept or queue.lease_counts then
      ended(queue, key)
    end
    if first then
      gather_following(queue, key, first)
    else
      local gone = queue.gone or gather_gone(queue)
      gone[#gone + 1], gone[key] = key, true
    end
    queue.changed = true
    if expires ~= 0 then
      gather('ZREM', queue.t, place_member(-fence, key))
    end
    return 1
  end
end

if releases then
  -- Undoes a claim: the item is where it was, and a buffered value updates it there.
  local function restore(queue, key, item, due)
    item.attempt = item.attempt - 1
    local following = replace(queue, key, item)
    if following then
      following.place = item.place
      item = following
    end
    local not_before = item.due ~= 0 and item.due or nil
    if due and (not not_before or due > not_before) then
      not_before = due
    end
    item.state, item.due = 0, 0
    if not_before and not_before > now then
      place(queue, key, item, not_before, now, false)
    else
      enter(queue, key, item)
    end
    save(queue, key, item)
  end

  -- {'release', name, key, token, front, delay, error, undo}.
  function verbs.release(request)
    local queue, key = at(request[2]), request[3]
    local lease = held(queue, key, request[4])
    if not lease then
      return REFUSED_LEASE
    end
    local item = held_item(queue, key)
    local due = request[6] > 0 and now + request[6] or nil
    end_lease(queue, key, lease)
    if request[8] then
      restore(queue, key, item, due)
    else
      remember(item, 'released', request[7], now)
      bring_back(queue, key, item, due, now, request[5])
    end
    return 1
  end

  -- {'extend', name, key, token, lease time or false, progress if any}. Answers when it expires, '' for never.
  function verbs.extend(request)
    local queue, key = at(request[2]), request[3]
    local lease = held(queue, key, request[4])
    if not lease then
      return REFUSED_LEASE
    end
    local fence, since, expires = sunpack('>ddd', lease)
    local member = place_member(-fence, key)
    if expires ~= 0 then
      zrem(queue.t, member)
    end
    expires = request[5] and now + request[5] or 0
    if expires ~= 0 then
      zadd(queue.t, expires, member)
      expect(queue, expires)
    end
    hset(queue.l, key, spack('>ddd', fence, since, expires) .. request[4])
    if request[6] then
      local item = unpack_item(call('HGET', queue.i, key))
      note_progress(item, request[6])
      save(queue, key, item)
    end
    queue.changed = true
    return expires ~= 0 and text(expires) or ''
  end
end

-- All other changes.
if changes then
  local max_buried = input[6]

  -- Forgets a buried item. If it held its key, the first of its line is the head. Answers the key, or false.
  local function unbury(queue, number)
    local key = drop_aside(queue, 'b', number)
    if key and holder(queue, key) == number then
      let_go(queue, key)
      follow(queue, key)
    end
    return key
  end

  -- {'bury', name, key, token, error, whether it holds its key}. Answers the id. There are at most so many
  -- buried items: the oldest are dropped.
  function verbs.bury(request)
    local queue, key = at(request[2]), request[3]
    local lease = held(queue, key, request[4])
    if not lease then
      return REFUSED_LEASE
    end
    local item = held_item(queue, key)
    end_lease(queue, key, lease)
    remember(item, 'buried', request[5], now)
    item.due, item.state = 0, request[6] and 1 or 0
    set_aside(queue, 'b', key, request[5], item, next_number(queue))
    if request[6] then
      remove(queue, key)
      hold(queue, key, item.id)
    else
      follow(queue, key)
    end
    while call('HLEN', queue.b) > max_buried do
      local oldest = call('ZRANGE', queue.b .. 't', 0, 0)[1]
      dropped[#dropped + 1] = queue.name
      dropped[#dropped + 1] = unbury(queue, oldest)
    end
    return item.id
  end

  local AT_A_TIME = 50 -- values in line, which may be large

  -- Removes values from the end of a line, and keeps a result for each. Answers how many.
  local function cut(queue, key, most, keep, result, outcome)
    local least, greatest = line_range(key)
    local removed = 0
    while queue.lined and removed < most do
      local page = call('ZREVRANGEBYLEX', queue.n, greatest, least, 'LIMIT', 0, min(AT_A_TIME, most - removed))
      if not page[1] then
        break
      end
      for _, member in ipairs(page) do
        local value = unpack_line(member, key)
        leave_line(queue, key, value)
        keep_result(queue, key, value, keep, result, outcome)
      end
      removed = removed + #page
    end
    if removed > 0 and holder(queue, key) then
      add_behind(queue, -removed)
    end
    return removed
  end

  -- The buried item of a key stays, and holds it no more.
  local function lift_hold(queue, key, number)
    let_go(queue, key)
    local raw = call('HGET', queue.b, number)
    local keys, errors = sunpack('>I4I4', raw)
    local at_state = 8 + keys + errors + STATE_AT
    hset(queue.b, number, sub(raw, 1, at_state - 1) .. '\0' .. sub(raw, at_state + 1))
    queue.changed = true
  end

  -- {'cancel', name, key, result, keep, id or false, outcome, only the line}. Answers how many values went, or
  -- {'long'}: the line is longer than one call may remove, and has to be cut first. An edit has to do all at
  -- once: it could not be undone otherwise.
  function verbs.cancel(request)
    local queue, key, result, keep, id = at(request[2]), request[3], request[4], request[5], request[6]
    local outcome, everything = request[7], not request[6] and not request[8]
    local raw = call('HGET', queue.i, key)
    local holding = not raw and holder(queue, key)
    if not raw and not holding then
      return 0
    elseif not id and not journal and line_size(queue, key) > CHUNK then
      return { 'long' }
    end
    local item, count = raw and unpack_item(raw), 0
    local head = raw and (everything or id == item.id)
    if head then
      -- First what needs no memory: then there is some for the results.
      local lease = call('HGET', queue.l, key)
      if lease then
        item.attempt = item.attempt + 1
        end_lease(queue, key, lease)
      else
        leave(queue, key, item)
      end
      keep_result(queue, key, item, keep, result, outcome)
      count = 1
    end
    if not id then
      count = count + cut(queue, key, huge, keep, result, outcome)
    elseif not head then
      local value = in_line(queue, key, id)
      if value then
        leave_line(queue, key, value)
        keep_result(queue, key, value, keep, result, outcome)
        count = 1
        if holding then
          add_behind(queue, -1)
        end
      end
    end
    if everything and holding then
      lift_hold(queue, key, holding)
    elseif head then
      follow(queue, key)
    end
    return count
  end

  -- {'cut_line', name, key, result, keep, outcome}: removes values from the end of a line, for a cancel. Answers
  -- how many, and 1 if others are left that are more than one call may remove.
  function verbs.cut_line(request)
    local queue, key = at(request[2]), request[3]
    local removed = cut(queue, key, CHUNK, request[5], request[4], request[6])
    return { removed, line_size(queue, key) > CHUNK and 1 or 0 }
  end

  -- {'requeue', name, id, policy, max_items, id on a cluster}: a put of what was buried, by the rules of a put.
  -- If it holds its key, it is the head again.
  function verbs.requeue(request)
    local queue, number, max_items = at(request[2]), request[3], request[5]
    local raw = call('HGET', queue.b, number)
    if not raw then
      return 0
    end
    local key, item = unpack_aside(raw)
    if holder(queue, key) == number then
      if max_items > 0 and waiting(queue) >= max_items then
        return { 'full' }
      end
      drop_aside(queue, 'b', number)
      let_go(queue, key)
      item.put_at, item.due, item.deadline, item.attempt, item.history = now, 0, 0, 0, ''
      make_ready(queue, key, item, false)
      save(queue, key, item)
      zadd(queue.o, item.id, key)
      return 1
    end
    local answer = verbs.put({
      'put', queue.name, { key }, { item.value }, request[4], item.priority, false, max_items, item.kind,
      false, 0, request[6],
    })
    flush()
    if type(answer[1]) ~= 'number' then
      return answer
    end
    drop_aside(queue, 'b', number)
    return 1
  end

  -- {'discard', name, id}: of a buried item or of a result.
  function verbs.discard(request)
    local queue = at(request[2])
    local number = request[3]
    local due = tonumber(call('ZSCORE', queue.d .. 't', number) or 0) -- an old result is not there
    if not unbury(queue, number) and not (due > now and drop_aside(queue, 'd', number)) then
      return 0
    end
    queue.changed = true
    return 1
  end

  -- An edit that is undone needs what was there: it is renamed, and unlinked at the end.
  local function remove_all(key)
    if journal then
      local aside = key .. '~' .. #journal
      if call('EXISTS', key) == 1 then
        call('RENAME', key, aside)
        journal[#journal + 1] = { 'k', key, aside }
      end
    else
      call('UNLINK', key)
    end
  end

  -- Whole keys: no purge takes longer for what is in them.
  local function purge_aside(queue, part)
    for _, suffix in ipairs({ '', 'o', 'k', 't' }) do
      remove_all(queue[part] .. suffix)
    end
  end

  local FEW_HOLDERS = max(CHUNK / 10, 1) -- buried items whose keys one call may let go

  -- Forgets the oldest buried items, at most so many, and lets go of their keys. Answers how many.
  local function unbury_oldest(queue, most)
    local oldest = call('ZRANGE', queue.b .. 't', 0, most - 1)
    for _, number in ipairs(oldest) do
      unbury(queue, number)
    end
    return #oldest
  end

  -- How many keys are held.
  local function holders(queue)
    return queue.holding and max(call('HLEN', queue.h) - 1, 0) or 0
  end

  -- {'cut_buried', name}: forgets buried items, for a purge. Answers as `verbs.cut_line` does.
  function verbs.cut_buried(request)
    local queue = at(request[2])
    local removed = unbury_oldest(queue, FEW_HOLDERS)
    queue.changed = true
    return { removed, holders(queue) > FEW_HOLDERS and 1 or 0 }
  end

  -- {'purge', name, 'buried', 'results' or 'all'}. Answers how many items that were, or {'long'}: more keys have
  -- to be let go than one call may. The lines of keys that are let go go on in the order of the burials.
  function verbs.purge(request)
    local queue, part = at(request[2]), request[3]
    local count = 0
    if part == 'buried' and holders(queue) > 0 then
      if holders(queue) > FEW_HOLDERS and not journal then
        return { 'long' }
      end
      local ages = {}
      for _, number in ipairs(call('HVALS', queue.h)) do
        local age = call('ZSCORE', queue.b .. 't', number)
        ages[#ages + 1] = age and { tonumber(age), number } or nil -- not the count among them
      end
      table.sort(ages, function(one, other)
        return one[1] < other[1]
      end)
      for _, entry in ipairs(ages) do
        unbury(queue, entry[2])
      end
      count = #ages
    end
    if part == 'buried' or part == 'all' then
      count = count + call('HLEN', queue.b)
      purge_aside(queue, 'b')
    end
    if part == 'results' or part == 'all' then
      count = count + results_of(queue, 't')
      purge_aside(queue, 'd')
      for _, outcome in ipairs(OUTCOMES) do
        remove_all(queue.d .. outcome)
      end
    end
    if part == 'all' then
      count = count + call('HLEN', queue.i) + call('ZCARD', queue.n)
      for _, name in ipairs({ 'i', 'o', 'r', 't', 'l', 'n', 'p', 'u', 'h' }) do
        remove_all(queue[name])
      end
      if queue.kept or queue.lease_counts then
        ended_all(queue)
      end
      queue.lined, queue.holding, queue.earliest, queue.noted = false, false, huge, true
    end
    queue.changed = queue.changed or count > 0
    return count
  end
end
