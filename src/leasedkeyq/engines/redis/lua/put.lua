-- Putting. A refusal is a table: {'inflight', keys, of}, {'present', keys, of}, {'full'} or {'stale'}.
local next_given = false -- the id of the next new item, on a cluster
local waiting

-- What a put has done with a value, as its answer has it.
local ADDED, UPDATED, BUFFERED, APPENDED, SKIPPED = 'a', 'u', 'b', 'p', 's'

if puts then
  -- What `max_items` limits: all that is not in flight.
  function waiting(queue)
    local lined = queue.lined and call('ZCARD', queue.n) or 0
    return call('HLEN', queue.i) - call('HLEN', queue.l) + lined
  end

  -- The id of the result of a key that was completed last, if that was at most so many seconds ago. Results
  -- whose time is over have been forgotten before.
  local function recent_result(queue, key, seconds)
    local least, most = line_range(key)
    local member = seconds > 0 and call('ZREVRANGEBYLEX', queue.d .. 'k', most, least, 'LIMIT', 0, 1)[1]
    if not member then
      return nil
    end
    local completed, ended, id = sunpack(ASIDE, member, #key + 2)
    return completed == 1 and ended + seconds >= now and id or nil
  end

  -- Whether a put of a key that is there adds a value; `held` is the buried item that holds the key.
  local function grows(queue, key, policy, held, leased)
    if policy == 'append' then
      return true
    elseif policy == 'skip' or policy == 'only_new' or last_in_line(queue, key) then
      return false
    end
    return held or (leased and policy == 'buffer')
  end

  -- The id behind which a new value of a key has to be, as the order of a line is that of the ids.
  local function last_id(queue, key, held)
    local last = last_in_line(queue, key)
    return last and last.id or tonumber(held) or sunpack('>d', call('HGET', queue.i, key))
  end

  -- All of a put is refused, or nothing: so this looks first.
  local function refuse_put(queue, request)
    local keys, policy, max_items = request[3], request[5], request[8]
    local seen, told, leased, present, of, need, stale = {}, {}, {}, {}, 0, 0, false
    for _, key in ipairs(keys) do
      local there_before = seen[key]
      if not seen[key] then
        seen[key], of = true, of + 1
        local held = holder(queue, key)
        there_before = held or call('HEXISTS', queue.i, key) == 1
        if not there_before then
          if policy ~= 'skip' or not recent_result(queue, key, request[11]) then
            need = need + 1
          end
        else
          local is_leased = call('HEXISTS', queue.l, key) == 1
          if is_leased then
            leased[#leased + 1] = key
          end
          if grows(queue, key, policy, held, is_leased) then
            need = need + 1
            stale = stale or (clustered and last_id(queue, key, held) >= request[12])
          end
        end
      end
      if there_before and not told[key] then
        told[key], present[#present + 1] = true, key
      end
    end
    if policy == 'reject' and #leased > 0 then
      return { 'inflight', leased, of }
    elseif policy == 'only_new' and #present > 0 then
      return { 'present', present, #keys }
    end
    need = policy == 'append' and #keys or need
    if max_items > 0 and need > 0 and waiting(queue) + need > max_items then
      return { 'full' }
    end
    -- On a cluster an id is given before its put comes: another put may have been quicker, with a higher one.
    return stale and { 'stale' } or nil
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

  -- Puts at the end of the line of a key. The value is written with those of the next requests, but for an
  -- edit.
  local function append(queue, key, value, kind, priority, due, deadline, held)
    local id = next_id(queue)
    queue.appended = not journal
    write_line(queue, key, {
      id = id, put_at = now, priority = priority or 0, due = due and due > now and due or 0,
      deadline = deadline, replaces = false, kind = kind, value = value,
    }, journal and write or gather)
    if held then
      add_behind(queue, 1)
    end
    return id, APPENDED
  end

  -- Replaces a value that has no place yet: the last of a line, or a leased item.
  local function update(queue, key, item, target, value, kind, priority, due, deadline)
    target.value, target.kind, target.deadline = value, kind, deadline
    if priority and priority ~= target.priority then
      target.priority = priority
      if target == item or target.replaces then
        -- Should the claim be undone, it goes to the back, where a put would move it.
        item.place = next_number(queue)
        if target ~= item then
          save(queue, key, item)
        end
      end
    end
    if due then
      target.due = due > now and due or 0
    end
    if target == item then
      save(queue, key, item)
    else
      write_line(queue, key, target, write)
    end
    return target.id
  end

  -- {'amend', name, key, id, value, priority, delay, kind}, each of the last four or false: changes a value that
  -- waits, where it is. Answers whether it does.
  function verbs.amend(request)
    local queue, key, id = at(request[2]), request[3], request[4]
    local due = request[7] and now + request[7]
    local raw = call('HGET', queue.i, key)
    local item = raw and unpack_item(raw)
    if item and item.id == id then
      if call('HEXISTS', queue.l, key) == 1 then
        return 0
      end
      put_again(queue, key, item, request[5] or item.value, request[8] or item.kind, request[6], due, item.deadline)
      return 1
    end
    local value = in_line(queue, key, id)
    if not value then
      return 0
    end
    take_out(queue, key, value)
    update(queue, key, item, value, request[5] or value.value, request[8] or value.kind, request[6], due,
      value.deadline)
    return 1
  end

  -- Puts where the key is there, as the policies say that replace the newest value that waits: the last of the
  -- line, or a head that is not leased. `raw` is the head, or false where a buried item holds the key.
  local function put_newest(queue, key, raw, value, kind, priority, due, deadline, policy)
    local last = last_in_line(queue, key)
    local item = raw and unpack_item(raw)
    if last then
      take_out(queue, key, last)
      return update(queue, key, item, last, value, kind, priority, due, deadline), UPDATED
    elseif not raw then
      return append(queue, key, value, kind, priority, due, deadline, true)
    elseif call('HEXISTS', queue.l, key) == 0 then
      return put_again(queue, key, item, value, kind, priority, due, deadline), UPDATED
    elseif policy ~= 'buffer' then
      return update(queue, key, item, item, value, kind, priority, due, deadline), UPDATED
    end
    local buffered = {
      id = next_id(queue), put_at = now, priority = item.priority, due = item.due, replaces = true,
    }
    return update(queue, key, item, buffered, value, kind, priority, due, deadline), BUFFERED
  end

  -- Puts where the key is there, or a result of it that stands for it. Otherwise answers nothing.
  local function put_there(queue, key, raw, value, kind, priority, due, deadline, policy, unique_for)
    local held = not raw and holder(queue, key)
    if policy == 'append' then
      if raw or held then
        return append(queue, key, value, kind, priority, due, deadline, held)
      end
      return nil
    elseif queue.appended then
      flush()
    end
    if policy == 'skip' then
      local last = (raw or held) and last_in_line(queue, key)
      local id = last and last.id or raw and sunpack('>d', raw) or tonumber(held)
      return id or recent_result(queue, key, unique_for), SKIPPED
    elseif raw or held then
      return put_newest(queue, key, raw, value, kind, priority, due, deadline, policy)
    end
  end

  -- The keys, each once.
  local function distinct(keys)
    local found, seen = {}, {}
    for number = 1, #keys do
      local key = keys[number]
      if not seen[key] then
        seen[key], found[#found + 1] = true, key
      end
    end
    return found
  end

  -- {'put', name, keys, values, policy, priority, delay, max_items, kind, deadline, unique for seconds, first id
  -- on a cluster}. Answers the ids and then, unless all were added, a letter for each.
  function verbs.put(request)
    local queue, keys, values = at(request[2]), request[3], request[4]
    local policy, priority, max_items, kind = request[5], request[6], request[8], request[9]
    next_given = request[12]
    if policy == 'reject' or policy == 'only_new' or max_items > 0
      or (clustered and (policy == 'append' or policy == 'buffer' or queue.holding)) then
      flush()
      local refusal = refuse_put(queue, request)
      if refusal then
        return refusal
      end
    end
    local due, deadline = request[7] and now + request[7], request[10] and now + request[10] or 0
    local ids, outcomes, records, seen = {}, false, false, false
    if keys[2] then
      flush()
      records, seen = {}, {}
      if policy == 'append' then
        -- A key may come very often, and its head be large.
        local once = distinct(keys)
        for number, raw in ipairs(records_of(queue, once)) do
          records[once[number]] = raw
        end
      else
        records = records_of(queue, keys)
      end
    end
    for number = 1, #keys do
      local key, raw, id, outcome = keys[number], nil, nil, ADDED
      if records and policy == 'append' then
        raw = records[key]
      elseif records and not seen[key] then
        raw, seen[key] = records[number], true
      else
        if queue.fresh[key] then
          flush()
        end
        raw = call('HGET', queue.i, key)
      end
      if raw or queue.holding or policy == 'skip' then
        id, outcome = put_there(queue, key, raw, values[number], kind, priority, due, deadline, policy,
          request[11])
      end
      if not id then
        id, outcome = put_new(queue, key, values[number], kind, priority, due, deadline), ADDED
        if records and policy == 'append' then
          records[key] = true -- from now on
        end
      end
      ids[number] = id
      if outcome ~= ADDED and not outcomes then
        outcomes = {}
        for place_in = 1, number - 1 do
          outcomes[place_in] = ADDED
        end
      end
      if outcomes then
        outcomes[number] = outcome
      end
    end
    if outcomes then
      ids[#ids + 1] = table.concat(outcomes)
    end
    return ids
  end
end
