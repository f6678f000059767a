-- What can be seen. An item is shown as {state, key, record, lease record or ''}, and so is a value in line, with
-- the record of an item; what has left its key as {state, '', record, ''}.
local flaw

if reads then
  local AVAILABLE, SCHEDULED, IN_FLIGHT, BUFFERED, BURIED, DONE, IN_LINE = 0, 1, 2, 3, 4, 5, 6

  -- A leased item has the state that it would have without its lease: whether there is one is looked up.
  local function live(queue, key)
    local raw = call('HGET', queue.i, key)
    if not raw then
      return nil
    end
    local lease = call('HGET', queue.l, key)
    if lease then
      return { IN_FLIGHT, key, raw, lease }
    end
    local state = string.byte(raw, STATE_AT)
    return { state == 1 and SCHEDULED or AVAILABLE, key, raw, '' }
  end

  local function show_line(key, value)
    return { value.replaces and BUFFERED or IN_LINE, key, pack_item(value), '' }
  end

  -- The part of a queue that does not fit the others, if that can be seen without looking at all of it.
  -- Each item is available, leased or comes due; each part has an index or more that are as large.
  function flaw(queue)
    local items, leased = call('HLEN', queue.i), call('HLEN', queue.l)
    local ready, timed = call('ZCARD', queue.r), call('ZCARD', queue.t)
    local order = call('ZCARD', queue.o)
    if order ~= items or items < ready + leased then
      return order < items and 'o' or 'i'
    end
    for part, indexes in pairs({ b = { 'bo', 'bk', 'bt' }, d = { 'do', 'dk', 'dt' } }) do
      local size = call('HLEN', queue[part])
      for _, index in ipairs(indexes) do
        local listed = call('ZCARD', queue.base .. index)
        if listed ~= size then
          return listed < size and index or part
        end
      end
    end
    local lined, ordered = call('ZCARD', queue.n), call('ZCARD', queue.p)
    -- If this very call has taken the last value from the last line, that is noted at its end.
    local noted = queue.lined and not (queue.left_line and lined == 0)
    if lined ~= ordered or noted ~= (lined > 0) then
      return ordered < lined and 'p' or 'n'
    elseif queue.holding ~= (call('EXISTS', queue.h) == 1) then
      return 'h'
    end
    for _, member in ipairs(ordered > 0 and call('ZRANGE', queue.p, 0, 4) or {}) do
      local key = sub(member, 1, -10)
      if call('HEXISTS', queue.i, key) == 0 and not holder(queue, key) then
        return queue.holding and 'i' or 'h' -- A line is behind nothing.
      end
    end
    for _, key in ipairs(queue.holding and call('HRANDFIELD', queue.h, 10) or {}) do
      if key ~= '\0' and call('HEXISTS', queue.b, call('HGET', queue.h, key)) == 0 then
        return 'h'
      end
    end
    for _, member in ipairs(call('ZRANGE', queue.t, 0, 4)) do
      local key, due = sub(member, 9), sunpack('>I8', member) > MIDDLE
      if call('HEXISTS', due and queue.i or queue.l, key) == 0 then
        return due and 'i' or 'l'
      end
    end
    if items > ready + leased + timed then
      return ready == 0 and 'r' or timed == 0 and 't' or 'l'
    end
    if timed == 0 and leased > 0 then
      for _, key in ipairs(call('HRANDFIELD', queue.l, 10)) do
        local _, _, expires = sunpack('>ddd', call('HGET', queue.l, key))
        if expires ~= 0 then
          return 't'
        end
      end
    end
    for _, member in ipairs(call('ZCARD', queue.u) == 0 and call('ZRANGE', queue.r, 0, 9) or {}) do
      local raw = there(call('HGET', queue.i, sub(member, 9)))
      if sub(raw, DEADLINE_AT, DEADLINE_AT + 7) ~= NO_DEADLINE then
        return 'u'
      end
    end
    if call('ZCARD', queue.d .. 'f') + call('ZCARD', queue.d .. 'c') > call('HLEN', queue.d) then
      return 'd'
    end
    for _, number in ipairs(call('HRANDFIELD', queue.d, 10)) do
      local raw = call('HGET', queue.d, number)
      local keys, errors = sunpack('>I4I4', #raw >= 8 and raw or spack('>I4I4', 0, 0))
      local outcome = OUTCOMES[string.byte(raw, 8 + keys + errors + STATE_AT)]
      if outcome and not call('ZSCORE', queue.d .. outcome, number) then
        return 'd' .. outcome
      end
    end
    -- The oldest, the newest and any: most of those that are left over are among them.
    for _, keys in ipairs(ready == 0 and items > leased and {
      call('ZRANGE', queue.o, 0, 9), call('ZRANGE', queue.o, -10, -1), call('HRANDFIELD', queue.i, 30),
    } or {}) do
      for _, key in ipairs(keys) do
        local state = string.byte(call('HGET', queue.i, key), STATE_AT)
        if state == 0 and call('HEXISTS', queue.l, key) == 0 then
          return 'r'
        end
      end
    end
  end

  -- Raised as any damage, so that it is told in the same way.
  local function check(queue)
    if flaw(queue) then
      error('attempt to use a part that is missing')
    end
  end

  -- What a sweep does in one queue, in bounded steps. Seconds until it is worth coming back; '': never.
  local function sweep(queue)
    local more = forget(queue, 500)
    more = forget_buckets(queue, 500) or more
    if more then
      return '0'
    end
    find_earliest(queue)
    local moment = min(queue.earliest, queue.over, next_token(queue) or huge)
    return moment < huge and text(max(moment - now, 0)) or ''
  end

  -- {'sweep', names, names}: the latter are those of queues whose keys are to be looked at as well.
  -- A damaged queue is told of when all others have been swept.
  function verbs.sweep(request)
    local answer, damaged = {}, false
    local function each(work, name)
      local sound, found = pcall(function()
        return work(at(name))
      end)
      damaged = damaged or not sound and damage(found)
      return found
    end
    for number, name in ipairs(request[2]) do
      answer[number] = each(sweep, name)
    end
    for _, name in ipairs(request[3]) do
      each(check, name)
    end
    return damaged or answer
  end

  -- {'count', names}: {available, scheduled, in flight, buried, done, of these failed, cancelled; values in line
  -- behind buried items} of each queue, by the sizes of its keys.
  function verbs.count(request)
    local answer = {}
    for number, name in ipairs(request[2]) do
      local queue = at(name)
      local ready, leased = call('ZCARD', queue.r), call('HLEN', queue.l)
      local behind = tonumber(queue.holding and call('HGET', queue.h, '\0') or 0)
      local lined = queue.lined and call('ZCARD', queue.n) or 0
      answer[number] = {
        ready + lined - behind, call('HLEN', queue.i) - ready - leased, leased,
        call('HLEN', queue.b), results_of(queue, 't'), results_of(queue, 'f'), results_of(queue, 'c'),
        behind,
      }
    end
    return answer
  end

  -- {'heads', names}: the item that the next claim would lease in each, or false.
  function verbs.heads(request)
    local answer = {}
    for number, name in ipairs(request[2]) do
      local queue = at(name)
      local member = call('ZRANGE', queue.r, 0, 0)[1]
      answer[number] = member and live(queue, string.sub(member, 9)) or false
    end
    return answer
  end

  -- The ranks of the items that a claim by urgency may lease in a queue, one after the other; and 1 if
  -- there was no time for all.
  function verbs.ranks(request)
    local queue, room, one, kinds = at(request[2]), request[3], request[4], set_of(request[5])
    local line, ranks = open_line(queue, room, one, kinds, request[6], request[7]), {}
    local in_time = look_further(line)
    while in_time and line.head do
      local rank = line.head.rank
      ranks[#ranks + 1] = { rank[1], text(rank[2]), text(rank[3]), text(rank[4]) }
      in_time = take_head(line)
    end
    return { ranks, in_time and 0 or 1 }
  end

  -- {'look', name, keys}: the head of each key and the first of its line.
  function verbs.look(request)
    local queue = at(request[2])
    local answer = {}
    for number, key in ipairs(request[3]) do
      local first = first_in_line(queue, key)
      local found = { live(queue, key) }
      found[#found + 1] = first and show_line(key, first)
      answer[number] = found
    end
    return answer
  end

  -- Adds values in the line of a key to an answer, at most so many, from one on. Answers how many, and the last.
  local function add_line(queue, key, from, most, answer)
    local _, last = line_range(key)
    local members = queue.lined and call('ZRANGEBYLEX', queue.n, from, last, 'LIMIT', 0, most) or {}
    local value
    for _, member in ipairs(members) do
      value = unpack_line(member, key)
      answer[#answer + 1] = show_line(key, value)
    end
    return #members, value
  end

  -- {'line', name, key, after, limit}: the values of a key by id behind `after`, its head among them: at most a
  -- page, and the id to go on behind; '' at the end.
  function verbs.line(request)
    local queue, key, after, limit = at(request[2]), request[3], request[4], min(request[5], 500)
    local answer = {}
    local head = live(queue, key)
    if head and sunpack('>d', head[3]) > after then
      answer[1] = head
    end
    local found, last = add_line(queue, key, '[' .. line_member(key, after + 1), limit, answer)
    return { found == limit and text(last.id) or '', answer }
  end

  -- A result is there until its time is over, though it is forgotten a little later.
  local function still_kept(raw)
    local _, item = unpack_aside(raw)
    return item.due > now
  end

  -- Items of some keys, in every state: some hundreds from a place on, and the place to go on from,
  -- '' at the end. A place is the number of a key, what to look at (heads, lines, buried items,
  -- results), and behind which member of an index. The last argument says whether to leave out lines.
  function verbs.keys(request)
    local queue, keys, heads_only = at(request[2]), request[3], request[5]
    local number, part, behind = unpack(request[4])
    local parts = { false, { 'b', BURIED }, { 'd', DONE } }
    local answer, steps, most = {}, 0, 500
    while number <= #keys do
      if steps >= most then
        return { { number, part, behind }, answer }
      end
      local key, full = keys[number], false
      steps = (part ~= 1 or queue.lined) and steps + 1 or steps
      if part == 0 then
        answer[#answer + 1] = live(queue, key)
      elseif part == 1 and not heads_only then
        local from = behind == '' and line_range(key) or '[' .. behind
        local found, last = add_line(queue, key, from, most, answer)
        steps = steps + found
        full, behind = found == most, found > 0 and line_member(key, last.id + 1) or ''
      elseif part ~= 1 then
        local name, state = unpack(parts[part])
        local start = behind == '' and '[' .. key .. '\0' or '(' .. behind
        local members = call('ZRANGEBYLEX', queue[name] .. 'k', start, '(' .. key .. '\1', 'LIMIT', 0, most)
        for _, member in ipairs(members) do
          local raw = call('HGET', queue[name], text(sunpack('>I8', member, #member - 7)))
          if raw and (state == BURIED or still_kept(raw)) then
            answer[#answer + 1] = { state, '', raw, '' }
          end
        end
        steps = steps + #members
        full, behind = #members == most, members[#members] or ''
      end
      if not full then
        part, behind = (part + 1) % 4, ''
        number = part == 0 and number + 1 or number
      end
    end
    return { '', answer }
  end

  -- {'results', name, ids}: the result of each, or false.
  function verbs.results(request)
    local queue = at(request[2])
    local answer = {}
    for number, id in ipairs(request[3]) do
      local raw = call('HGET', queue.d, id)
      answer[number] = raw and still_kept(raw) and { DONE, '', raw, '' } or false
    end
    return answer
  end

  -- What has left its key, for a listing, unless that does not want it.
  local function show_aside(queue, part, state, number, prefixed)
    local raw = call('HGET', queue[part], number)
    local key = unpack_aside(raw)
    if prefixed(key) and (state ~= DONE or still_kept(raw)) then
      return { state, '', raw, '' }
    end
    return nil
  end

  local FEW = 50 * CHUNK -- items of which a call may find the next ones without reading the others
  local SPAN = 10 * CHUNK -- entries and records that a call may look at, to find a page among them
  local AT_ONCE = 50 -- records that are read by one command: values may be large

  -- The keys of the heads in some states, each once. They are told apart by the indexes: no record is read.
  local function keys_in(queue, states, prefixed)
    local keys = {}
    local function add(key)
      if prefixed(key) then
        keys[#keys + 1] = key
      end
    end
    for _, member in ipairs(states[AVAILABLE] and call('ZRANGE', queue.r, 0, -1) or {}) do
      add(sub(member, 9))
    end
    for _, member in ipairs(states[SCHEDULED] and call('ZRANGE', queue.t, 0, -1) or {}) do
      if sunpack('>I8', member) > MIDDLE then -- otherwise it is a lease
        add(sub(member, 9))
      end
    end
    for _, key in ipairs(states[IN_FLIGHT] and call('HKEYS', queue.l) or {}) do
      add(key)
    end
    return keys
  end

  -- {'browse', name, states, prefix, after, limit, newest first}: items by id behind `after`, or from there down:
  -- what was found among the next few hundred, and where to go on; '' at the end.
  function verbs.browse(request)
    local queue, states, start, after, limit = at(request[2]), {}, request[4], request[5], request[6]
    local newest_first = request[7]
    if after == (newest_first and 2 * MIDDLE or 0) then
      check(queue) -- What is missing in an index would be missing in the list, and the caller would not know.
    end
    for _, state in ipairs(request[3]) do
      states[state] = true
    end
    local function prefixed(key)
      return start == '' or string.sub(key, 1, #start) == start
    end
    -- Whether an id comes before another one in this listing.
    local function precedes(id, other)
      if newest_first then
        return id > other
      end
      return id < other
    end
    local most = max(min(limit, 500), 100)
    local found, horizon = {}, nil
    -- There may be more in some part, behind that id: nothing behind it can be told yet.
    local function look_no_further(id)
      if not horizon or precedes(id, horizon) then
        horizon = id
      end
    end
    local range, last = newest_first and 'ZREVRANGEBYSCORE' or 'ZRANGEBYSCORE', newest_first and '-inf' or '+inf'
    local function add(id, shown)
      found[#found + 1] = shown and { id, shown } or nil
    end
    -- What follows `after` in an index, until a page was found or enough was looked at. `key_of` tells the key of an
    -- entry, if that can be told without its record; `show` is given the entries of the prefix, some at a time.
    -- With `only_if_near`, little is looked at, and nothing added if that is too little. Answers whether it was added.
    local function add_all(index, key_of, show, only_if_near)
      local from, block, looked, enough = after, most, 0, #found + most
      local span, before = only_if_near and CHUNK or SPAN, #found
      while true do
        local entries = call(range, index, '(' .. text(from), last, 'WITHSCORES', 'LIMIT', 0, block)
        local names, ids = {}, {}
        for number = 1, #entries, 2 do
          if not key_of or prefixed(key_of(entries[number])) then
            names[#names + 1], ids[#ids + 1] = entries[number], tonumber(entries[number + 1])
          end
        end
        show(names, ids)
        if #entries < 2 * block then
          return true
        end
        from, looked = tonumber(entries[#entries]), looked + block + #names
        if only_if_near and #found < enough and looked >= span then
          for number = #found, before + 1, -1 do
            found[number] = nil
          end
          return false
        elseif #found >= enough or looked >= span then
          look_no_further(from)
          return true
        end
        block = min(2 * block, 500)
      end
    end
    -- Of ids in no order, the first ones that follow `after`.
    local function first_of(ids)
      local sign, order = newest_first and -1 or 1, {}
      for _, id in ipairs(ids) do
        if precedes(after, id) then
          order[#order + 1] = sign * id -- Without a function that compares, they are sorted in a fifth of the time.
        end
      end
      table.sort(order)
      local first = {}
      for number = 1, min(#order, most) do
        first[number] = sign * order[number]
      end
      if #order > most then
        look_no_further(first[most])
      end
      return first
    end
    -- Heads, of which only those are read that may be in one of the states.
    local function show_heads(keys, ids)
      local leases = keys[1] and call('HMGET', queue.l, unpack(keys)) or {}
      local wanted = {}
      for number = 1, #keys do
        if leases[number] and states[IN_FLIGHT] or not leases[number] and (states[AVAILABLE] or states[SCHEDULED]) then
          wanted[#wanted + 1] = number
        end
      end
      for first = 1, #wanted, AT_ONCE do
        local some = {}
        for place_in = first, min(first + AT_ONCE - 1, #wanted) do
          some[#some + 1] = keys[wanted[place_in]]
        end
        for place_in, raw in ipairs(call('HMGET', queue.i, unpack(some))) do
          local number = wanted[first + place_in - 1]
          local lease, key = leases[number] or '', keys[number]
          local state = lease ~= '' and IN_FLIGHT or raw and string.byte(raw, STATE_AT) == 1 and SCHEDULED or AVAILABLE
          add(ids[number], raw and states[state] and { state, key, raw, lease })
        end
      end
    end
    -- Of what is shown in no order, those that follow `after`.
    local function add_first(few)
      local shown_few = {}
      for _, shown in ipairs(few) do
        local id = sunpack('>d', shown[3])
        if precedes(after, id) then
          shown_few[#shown_few + 1] = { id, shown }
        end
      end
      table.sort(shown_few, function(one, other)
        return precedes(one[1], other[1])
      end)
      if #shown_few > most then
        look_no_further(shown_few[most][1])
      end
      for number = 1, min(#shown_few, most) do
        found[#found + 1] = shown_few[number]
      end
    end
    if states[AVAILABLE] or states[SCHEDULED] or states[IN_FLIGHT] then
      -- The fewer ones are looked at: those in these states, of which each page looks at all, or the others, which the
      -- pages pass over.
      local few = (states[AVAILABLE] and call('ZCARD', queue.r) or 0)
        + (states[SCHEDULED] and call('ZCARD', queue.t) or 0)
        + (states[IN_FLIGHT] and call('HLEN', queue.l) or 0)
      local function the_key(key)
        return key
      end
      local is_few = few <= FEW and 2 * few < call('ZCARD', queue.o)
      -- But where a page begins there often are the wanted ones: the oldest are leased, the newest are scheduled.
      local near = is_few and few > CHUNK and add_all(queue.o, the_key, show_heads, true)
      if is_few and not near then
        local keys, ids, key_of = keys_in(queue, states, prefixed), {}, {}
        for first = 1, #keys, CHUNK do
          local final = min(first + CHUNK - 1, #keys)
          for place_in, score in ipairs(call('ZMSCORE', queue.o, unpack(keys, first, final))) do
            local id = tonumber(score or nil)
            if id then
              ids[#ids + 1], key_of[id] = id, keys[first + place_in - 1]
            end
          end
        end
        local first, chosen = first_of(ids), {}
        for number, id in ipairs(first) do
          chosen[number] = key_of[id]
        end
        show_heads(chosen, first)
      elseif not near then
        add_all(queue.o, the_key, show_heads)
      end
    end
    if states[BUFFERED] and not states[IN_LINE] and call('HLEN', queue.l) <= 4 * CHUNK then
      -- They are behind leased items, and all lines together may be long.
      local keys = {}
      for _, key in ipairs(queue.lined and call('HKEYS', queue.l) or {}) do
        local first = prefixed(key) and first_in_line(queue, key)
        keys[#keys + 1] = first and first.replaces and show_line(key, first) or nil
      end
      add_first(keys)
    elseif states[BUFFERED] or states[IN_LINE] then
      add_all(queue.p, function(member)
        return sub(member, 1, -10)
      end, function(members, ids)
        for number, member in ipairs(members) do
          local key = sub(member, 1, -10)
          local value = in_line(queue, key, ids[number]) or there(nil)
          add(ids[number], states[value.replaces and BUFFERED or IN_LINE] and show_line(key, value))
        end
      end)
    end
    for part, state in pairs({ b = BURIED, d = DONE }) do
      if states[state] then
        -- An index has them by key: of a prefix that not too many have, no others are read.
        local members = start ~= '' and call('ZRANGEBYLEX', queue[part] .. 'k', '[' .. start, '(' .. start .. '\255',
          'LIMIT', 0, FEW + 1)
        if members and #members <= FEW then
          local ids = {}
          for number, member in ipairs(members) do
            ids[number] = sunpack('>I8', member, #member - 7)
          end
          for _, id in ipairs(first_of(ids)) do
            add(id, show_aside(queue, part, state, string.format('%.0f', id), prefixed))
          end
        else
          add_all(queue[part] .. 'o', nil, function(numbers, ids)
            for place_in, number in ipairs(numbers) do
              add(ids[place_in], show_aside(queue, part, state, number, prefixed))
            end
          end)
        end
      end
    end
    table.sort(found, function(one, other)
      return precedes(one[1], other[1])
    end)
    local answer = {}
    for _, entry in ipairs(found) do
      if not horizon or not precedes(horizon, entry[1]) then
        answer[#answer + 1] = entry[2]
      end
    end
    return { horizon and text(horizon) or '', answer }
  end

  -- No other call changes the queue until it is unlocked, or until so many milliseconds have passed.
  function verbs.lock(request)
    local queue = at(request[2])
    queue.edited, queue.editor, queue.noted = micros + request[3] * 1000, edit_token, true
    return now_text
  end

  -- For an edit that was given up. One that was applied has ended already.
  function verbs.unlock(request)
    end_edit(at(request[2]))
    return 1
  end
end
