-- Putting. A refusal is a table: {'inflight', keys, of} or {'full'}.
local next_given = false -- the id of the next new item, on a cluster

if puts then
  -- What `max_items` limits: all that is not in flight.
  local function waiting(queue)
    return call('HLEN', queue.i) - call('HLEN', queue.l) + queue.buffered
  end

  -- All of a put is refused, or nothing: so this looks first.
  local function refuse_put(queue, keys, policy, max_items)
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

  -- On a cluster, ids are counted for all its servers, and come with the request.
  local function next_id(queue)
    if not clustered then
      return next_number(queue)
    end
    next_given = next_given + 1
    return next_given - 1
  end

  -- A key that has no item. The item is written with those of the next requests, but for an edit.
  local function put_new(queue, key, value, kind, priority, due, deadline)
    local id = next_id(queue)
    local place_of = clustered and next_number(queue) or id
    queue.changed, queue.fresh[key] = true, not journal
    due = due and due > now and due or 0
    if due ~= 0 then
      expect(queue, due)
    end
    local how = journal and write or gather
    insert(how, queue.base, key, value, kind, id, place_of, priority or 0, due, deadline)
    return id
  end

  -- Puts on an item that is not in flight.
  local function put_again(queue, key, item, value, kind, priority, due, deadline)
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
    if item.state == 0 and item.deadline ~= deadline then
      if deadline ~= 0 then
        zadd(queue.u, deadline, deadline_member(item.id, key))
      else
        zrem(queue.u, deadline_member(item.id, key))
      end
    end
    item.value, item.kind, item.deadline = value, kind, deadline
    save(queue, key, item)
    return item.id
  end

  -- Puts on an item that is in flight.
  local function put_beside(queue, key, item, value, kind, priority, due, deadline, policy)
    local following = next_of(queue, key)
    local target = following or item
    if not following and policy == 'buffer' then
      target = {
        id = next_id(queue), put_at = now, priority = item.priority, place = 0, due = item.due,
        attempt = 0, state = 0, history = '',
      }
      following = target
      queue.buffered, queue.noted = queue.buffered + 1, true
      zadd(queue.p, target.id, key)
    end
    target.value, target.kind, target.deadline = value, kind, deadline
    if priority and priority ~= target.priority then
      target.priority = priority
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

  -- {'put', name, keys, values, policy, priority, delay, max_items, kind, deadline, first id on a cluster}.
  -- Answers the ids.
  function verbs.put(request)
    local queue, keys, values = at(request[2]), request[3], request[4]
    local policy, priority, max_items, kind = request[5], request[6], request[8], request[9]
    next_given = request[11]
    if policy == 'reject' or max_items > 0 then
      flush()
      local refusal = refuse_put(queue, keys, policy, max_items)
      if refusal then
        return refusal
      end
    end
    local due, deadline = request[7] and now + request[7], request[10] and now + request[10] or 0
    local ids, records, seen = {}, false, false
    if keys[2] then
      flush()
      records, seen = records_of(queue, keys), {}
    end
    for number = 1, #keys do
      local key, raw = keys[number], nil
      if records and not seen[key] then
        raw, seen[key] = records[number], true
      else
        if queue.fresh[key] then
          flush()
        end
        raw = call('HGET', queue.i, key)
      end
      if not raw then
        ids[number] = put_new(queue, key, values[number], kind, priority, due, deadline)
      else
        local change = call('HEXISTS', queue.l, key) == 1 and put_beside or put_again
        ids[number] = change(queue, key, unpack_item(raw), values[number], kind, priority, due, deadline,
          policy)
      end
    end
    return ids
  end
end
