-- Putting, and ending leases. A refusal is a table: {'inflight', keys, of}, {'full'} or {'lease'}.
local REFUSED_LEASE = { 'lease' }
local verbs, dropped = {}, {}
local put_items, held, held_item, keep_result, follow

if puts then
  local function waiting(queue)
    return call('HLEN', queue.i) - call('HLEN', queue.l) + queue.buffered
  end

  local function refuse_put(queue, keys, policy, max_items)
    if policy ~= 'reject' and max_items == 0 then
      return nil
    end
    local seen, leased, of, need = {}, {}, 0, 0
    for _, key in ipairs(keys) do
      if not seen[key] then
        seen[key] = true
        of = of + 1
        if call('HEXISTS', queue.i, key) == 0 then
          need = need + 1
        elseif call('HEXISTS', queue.l, key) == 1 then
          leased[#leased + 1] = key
          if policy == 'buffer' and call('HEXISTS', queue.n, key) == 0 then
            need = need + 1
          end
        end
      end
    end
    if policy == 'reject' and #leased > 0 then
      return { 'inflight', leased, of }
    end
    if max_items > 0 and need > 0 and waiting(queue) + need > max_items then
      return { 'full' }
    end
    return nil
  end

  -- Puts on an item that is not in flight.
  local function put_again(queue, key, item, value, put, due)
    local priority = put.priority
    if priority and priority ~= item.priority then
      if item.state == 0 then
        leave(queue, key, item)
        item.priority = priority
        make_ready(queue, key, item, false)
      else
        item.priority = priority
      end
    end
    if due and (item.state == 1 or due > now) then
      leave(queue, key, item)
      place(queue, key, item, due, now, false)
    end
    if item.state == 0 and item.deadline ~= put.deadline then
      if put.deadline ~= 0 then
        zadd(queue.u, put.deadline, hurried_member(item.id, key))
      else
        zrem(queue.u, hurried_member(item.id, key))
      end
    end
    item.value, item.kind, item.deadline = value, put.kind, put.deadline
    save(queue, key, item)
    return item.id
  end

  local function next_id(queue)
    if not clustered then
      return next_number(queue)
    end
    next_given = next_given + 1
    return next_given - 1
  end

  -- Puts on an item that is in flight.
  local function put_beside(queue, key, item, value, put, due)
    local following = next_of(queue, key)
    local target = following or item
    if not following and put.policy == 'buffer' then
      target = {
        id = next_id(queue), put_at = now, priority = item.priority, place = 0, due = item.due,
        attempt = 0, state = 0, history = '',
      }
      following = target
      queue.buffered, queue.noted = queue.buffered + 1, true
      zadd(queue.p, target.id, key)
    end
    target.value, target.kind, target.deadline = value, put.kind, put.deadline
    if put.priority and put.priority ~= target.priority then
      target.priority = put.priority
      -- Should the claim be undone, it goes to the back, where a put would move it.
      item.place = next_number(queue)
      if following then
        save(queue, key, item)
      end
    end
    if due then
      target.due = due > now and due or 0
    end
    if following then
      queue.changed = true
      hset(queue.n, key, pack_item(target))
    else
      save(queue, key, item)
    end
    return target.id
  end

  -- New items are written together with those of the next requests.
  local function gather_new(queue, key, id, priority, place_of, deadline, record)
    local new = queue.new
    if not new then
      new = {
        size = 0, keys = {}, items = gathered('HSET', queue.i, queue),
        ready = gathered('ZADD', queue.r, queue), order = gathered('ZADD', queue.o, queue),
        hurried = gathered('ZADD', queue.u, queue),
      }
      queue.new, queue.changed = new, true
    end
    local first = new.size + 1
    local second = first + 1
    new.size, new.keys[key] = second, true
    new.items[first], new.items[second] = key, record
    new.ready[first], new.ready[second] = -priority, spack('>I8', MIDDLE + place_of) .. key
    new.order[first], new.order[second] = id, key
    if deadline ~= 0 then
      local size = #new.hurried
      new.hurried[size + 1], new.hurried[size + 2] = deadline, hurried_member(id, key)
    end
  end

  local function put_new(queue, key, value, put, due)
    local id = next_id(queue)
    local item = {
      id = id, put_at = now, priority = put.priority or 0, place = id, due = 0,
      deadline = put.deadline, attempt = 0, state = 0, kind = put.kind, history = '', value = value,
    }
    if journal or (due and due > now) then
      place(queue, key, item, due, now, false)
      zadd(queue.o, id, key)
      save(queue, key, item)
      return id
    end
    if clustered then
      item.place = next_number(queue)
    end
    gather_new(queue, key, id, item.priority, item.place, item.deadline, pack_item(item))
    return id
  end

  local function flush_new(queue)
    if queue.new then
      flush()
    end
  end

  function put_items(queue, put, keys, values)
    if put.policy == 'reject' or put.max_items > 0 then
      flush_new(queue)
      local refusal = refuse_put(queue, keys, put.policy, put.max_items)
      if refusal then
        return refusal
      end
    end
    for _, key in ipairs(keys) do
      if queue.new and queue.new.keys[key] then
        flush_new(queue)
      end
    end
    local due = put.delay and now + put.delay
    local ids, seen = {}, {}
    local records = records_of(queue, keys)
    for number, key in ipairs(keys) do
      local raw = records[number]
      if seen[key] then
        flush_new(queue)
        raw = call('HGET', queue.i, key)
      end
      seen[key] = true
      if not raw then
        ids[number] = put_new(queue, key, values[number], put, due)
      else
        flush_new(queue)
        local item = unpack_item(raw)
        local change = call('HEXISTS', queue.l, key) == 1 and put_beside or put_again
        ids[number] = change(queue, key, item, values[number], put, due)
      end
    end
    return ids
  end

  function verbs.put(request)
    local keys, queue = request[3], at(request[2])
    local key = keys[1]
    if key and not keys[2] and not request[7] and request[8] == 0 and request[5] ~= 'reject'
      and not journal and not clustered and not (queue.new and queue.new.keys[key])
      and call('HEXISTS', queue.i, key) == 0 then
      local id, priority, kind = next_number(queue), request[6] or 0, request[9]
      local deadline = request[10] and now + request[10] or 0
      gather_new(queue, key, id, priority, id, deadline,
        spack(ITEM, id, now, priority, id, 0, deadline, 0, 0, #kind, 0) .. kind .. request[4][1])
      return { id }
    end
    local put = {
      policy = request[5], priority = request[6], delay = request[7], max_items = request[8],
      kind = request[9], deadline = request[10] and now + request[10] or 0,
    }
    next_given = request[11]
    return put_items(queue, put, keys, request[4])
  end
end

if acks then
  -- The lease record and the item that a token holds.
  function held(queue, key, token)
    local lease = call('HGET', queue.l, key)
    if lease and token ~= '' and sub(lease, 25) == token then
      return lease
    end
    return nil
  end

  function held_item(queue, key)
    local item = unpack_item(call('HGET', queue.i, key))
    item.attempt = item.attempt + 1
    return item
  end

  function keep_result(queue, key, item, keep, result, outcome)
    if keep > 0 then
      local kept = {}
      for name, value in pairs(item) do
        kept[name] = value
      end
      kept.value, kept.due, kept.place, kept.state = result, now + keep, 0, outcome
      set_aside(queue, 'd', key, '', kept, kept.due)
    end
  end

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

  -- Acknowledged items go together with those of the next requests.
  local function gather_acks(queue)
    local later = {
      gone = {}, leases = gathered('HDEL', queue.l, queue), items = gathered('HDEL', queue.i, queue),
      order = gathered('ZREM', queue.o, queue), timed = gathered('ZREM', queue.t, queue),
    }
    if keeps then
      later.records, later.ids = gathered('HSET', queue.d, queue), gathered('ZADD', queue.d .. 'o', queue)
      later.dues, later.keys = gathered('ZADD', queue.d .. 't', queue), gathered('ZADD', queue.d .. 'k', queue)
    end
    queue.later = later
    return later
  end

  function verbs.ack(request)
    local queue, key, result, keep = at(request[2]), request[3], request[5], request[6]
    local later = not journal and (queue.later or gather_acks(queue))
    local lease = held(queue, key, request[4])
    if not lease or (later and later.gone[key]) then
      return REFUSED_LEASE
    end
    local item = (keep > 0 or queue.buffered > 0) and held_item(queue, key)
    if item then
      keep_result(queue, key, item, keep, result, request[7])
    end
    if not later or (queue.buffered > 0 and call('HEXISTS', queue.n, key) == 1) then
      end_lease(queue, key, lease)
      follow(queue, key, item)
      return 1
    end
    local fence, _, expires = sunpack('>ddd', lease)
    local size = #later.leases + 1
    if queue.kept or queue.tally then
      ended(queue, key)
    end
    queue.changed = true
    later.gone[key] = true
    later.leases[size], later.items[size], later.order[size] = key, key, key
    if expires ~= 0 then
      later.timed[#later.timed + 1] = place_member(-fence, key)
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

  function verbs.requeue(request)
    local queue, number = at(request[2]), request[3]
    local raw = call('HGET', queue.b, number)
    if not raw then
      return 0
    end
    local key, item = unpack_aside(raw)
    local put = {
      policy = request[4], priority = item.priority, delay = false, max_items = request[5],
      kind = item.kind, deadline = 0,
    }
    next_given = request[6]
    local answer = put_items(queue, put, { key }, { item.value })
    if type(answer[1]) ~= 'number' then
      return answer
    end
    drop_aside(queue, 'b', number)
    return 1
  end

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

  local function purge_aside(queue, part)
    for _, suffix in ipairs({ '', 'o', 'k', 't' }) do
      remove_all(queue[part] .. suffix)
    end
  end

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
      if queue.kept or queue.tally then
        ended_all(queue)
      end
      queue.buffered, queue.earliest, queue.noted = 0, huge, true
    end
    queue.changed = queue.changed or count > 0
    return count
  end
end
