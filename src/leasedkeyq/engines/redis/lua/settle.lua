-- Ending leases, and the other changes of what is there. A refusal is a table: {'lease'}, or that of a put.
local REFUSED_LEASE = { 'lease' }
local held, held_item, keep_result, follow

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
      kept.value, kept.due, kept.place, kept.state = result, now + keep, 0, outcome
      set_aside(queue, 'd', key, '', kept, kept.due, how)
    end
  end

  -- The key has no item any more.
  local function remove(queue, key)
    queue.changed = true
    hdel(queue.i, key)
    zrem(queue.o, key)
  end

  -- The item has gone: a buffered one follows it, and begins anew.
  function follow(queue, key, item)
    if queue.buffered > 0 and call('HEXISTS', queue.n, key) == 1 then
      item.attempt, item.history = 0, ''
      bring_back(queue, key, item, nil, now, false)
    else
      remove(queue, key)
    end
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

  -- {'ack', name, key, token, result, keep, outcome}. Acknowledged items go together with those of the next
  -- requests, but for one that a buffered value follows.
  function verbs.ack(request)
    local queue, key, result, keep = at(request[2]), request[3], request[5], request[6]
    local lease = held(queue, key, request[4])
    if not lease or (queue.gone and queue.gone[key]) then
      return REFUSED_LEASE
    end
    local item = (keep > 0 or queue.buffered > 0) and held_item(queue, key)
    if item then
      keep_result(queue, key, item, keep, result, request[7], not journal and gather)
    end
    if journal or (queue.buffered > 0 and call('HEXISTS', queue.n, key) == 1) then
      end_lease(queue, key, lease)
      follow(queue, key, item)
      return 1
    end
    local fence, _, expires = sunpack('>ddd', lease)
    if queue.kept or queue.lease_counts then
      ended(queue, key)
    end
    local gone = queue.gone or gather_gone(queue)
    gone[#gone + 1], gone[key] = key, true
    queue.changed = true
    if expires ~= 0 then
      gather('ZREM', queue.t, place_member(-fence, key))
    end
    return 1
  end
end

if releases then
  -- Undoes a claim: the item is where it was, and a buffered one updates it there.
  local function restore(queue, key, item, due)
    item.attempt = item.attempt - 1
    local following = next_of(queue, key)
    if following then
      replace(queue, key, following)
      following.place, following.attempt, following.history = item.place, item.attempt, item.history
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

  -- {'extend', name, key, token, lease time or false}. Answers when it expires, '' for never.
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
    queue.changed = true
    return expires ~= 0 and text(expires) or ''
  end
end

-- All other changes.
if changes then
  local max_buried = input[6]

  -- {'bury', name, key, token, error}. Answers the id. There are at most so many buried items: the oldest are
  -- dropped.
  function verbs.bury(request)
    local queue, key = at(request[2]), request[3]
    local lease = held(queue, key, request[4])
    if not lease then
      return REFUSED_LEASE
    end
    local item = held_item(queue, key)
    local number = item.id
    end_lease(queue, key, lease)
    remember(item, 'buried', request[5], now)
    local not_before = item.due
    item.due = 0
    set_aside(queue, 'b', key, request[5], item, next_number(queue))
    item.due = not_before
    while call('HLEN', queue.b) > max_buried do
      local oldest = call('ZRANGE', queue.b .. 't', 0, 0)[1]
      dropped[#dropped + 1] = queue.name
      dropped[#dropped + 1] = drop_aside(queue, 'b', oldest)
    end
    follow(queue, key, item)
    return number
  end

  -- With an id, only the item of that id goes: the leased one, or the buffered one beside it.
  function verbs.cancel(request)
    local queue, key, result, keep, id = at(request[2]), request[3], request[4], request[5], request[6]
    local outcome = request[7]
    local raw = call('HGET', queue.i, key)
    if not raw then
      return 0
    end
    local item, following = unpack_item(raw), next_of(queue, key)
    local first = not id or id == item.id
    local second = following and (not id or id == following.id)
    local lease = call('HGET', queue.l, key)
    if lease then
      item.attempt = item.attempt + 1
    end
    -- First what needs no memory: then there is some for the results.
    if first then
      if lease then
        end_lease(queue, key, lease)
      else
        leave(queue, key, item)
      end
      keep_result(queue, key, item, keep, result, outcome)
    end
    if second then
      drop_next(queue, key)
      keep_result(queue, key, following, keep, result, outcome)
      queue.changed = true
    end
    if first then
      follow(queue, key, item)
    end
    return (first or second) and 1 or 0
  end

  -- {'requeue', name, id, policy, max_items, id on a cluster}: a put of what was buried, by the rules of a put.
  function verbs.requeue(request)
    local queue, number = at(request[2]), request[3]
    local raw = call('HGET', queue.b, number)
    if not raw then
      return 0
    end
    local key, item = unpack_aside(raw)
    local answer = verbs.put({
      'put', queue.name, { key }, { item.value }, request[4], item.priority, false, request[5], item.kind,
      false, request[6],
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
    if not drop_aside(queue, 'b', number) and not (due > now and drop_aside(queue, 'd', number)) then
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

  -- {'purge', name, 'buried', 'results' or 'all'}. Answers how many items that were.
  function verbs.purge(request)
    local queue, part = at(request[2]), request[3]
    local count = 0
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
      count = count + call('HLEN', queue.i) + queue.buffered
      for _, name in ipairs({ 'i', 'o', 'r', 't', 'l', 'n', 'p', 'u' }) do
        remove_all(queue[name])
      end
      if queue.kept or queue.lease_counts then
        ended_all(queue)
      end
      queue.buffered, queue.earliest, queue.noted = 0, huge, true
    end
    queue.changed = queue.changed or count > 0
    return count
  end
end
