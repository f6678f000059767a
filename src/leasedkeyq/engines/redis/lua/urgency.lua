-- Claims by urgency. A line is what a claim may lease in one queue, from its `head` on. It has two
-- ways into the queue: by place and by deadline. Of what is next on them, the item is the head that is
-- up more levels; of two that are alike, the one by place.
--
-- To rank above the engines, by `heads`, and then claim the keys was measured with 20 queues and claims of
-- 10 items: one worker leases 1,070 items a second so and 1,830 by this file, four workers 1,070 and 4,300,
-- as they choose the same keys.
local open_line, look_further, take_head

if urgent then
  -- Whether a deadline can make an item more urgent. An urgency is {priority, deadline or false, steps}.
  function lifts(urgency)
    return urgency[2] or urgency[3][1]
  end

  -- From the first member on, or from behind the one at which an earlier call has stopped.
  local function open_way(set, size, score, member)
    return {
      set = set, page = {}, place = 0, size = size, ended = false, found = false,
      from = member ~= '' and rank_behind(set, score, member) or 0,
    }
  end

  -- `limits` are the caps of the claim.
  function open_line(queue, room, one, kinds, limits, urgency, start)
    local size = min(room + 4, 200)
    local by_deadline = false
    if not one and lifts(urgency) and call('EXISTS', queue.u) == 1 then
      local score, member = '', ''
      if start and start[4] ~= '' then
        score, member = string.format('%.17g', sunpack('>d', start[4])), sub(start[4], 9)
      end
      by_deadline = open_way(queue.u, size, score, member)
    end
    return {
      queue = queue, room = room, one = one, kinds = kinds, urgency = urgency,
      rooms = limits and rooms_of(queue, limits), members = {}, taken = {}, head = false,
      by_place = open_way(queue.r, size, start and start[2] or '', start and start[3] or ''),
      by_deadline = by_deadline,
    }
  end

  -- {0 past its deadline or 1, its effective priority, when it was put, its id}: the lower, the sooner.
  local function rank_of(urgency, raw)
    local id, put_at, _, _, _, due = sunpack(ITEM, raw)
    local priority, deadline, steps = urgency[1], urgency[2], urgency[3]
    if due == 0 then
      due = deadline and put_at + deadline
    end
    if not due or not (deadline or steps[1]) then
      return { 1, priority, put_at, id }
    elseif due <= now or due <= put_at then
      return { 0, priority, put_at, id }
    end
    local share, up = (due - now) / (due - put_at), 0
    for _, step in ipairs(steps) do
      if share <= step[1] then
        up = max(up, step[2])
      end
    end
    return { 1, priority - up, put_at, id }
  end

  -- What may be leased of an item, or false.
  local function candidate(line, key, raw)
    if (line.kinds and not line.kinds[kind_of(raw)])
      or (line.rooms and not room_for(line.queue, line.rooms, key)) then
      return false
    end
    return { key = key, raw = raw, rank = rank_of(line.urgency, raw) }
  end

  -- A claim of one key has a line of one.
  local function look_at_key(line)
    local queue, key = line.queue, line.one
    local raw = call('HGET', queue.i, key)
    if raw and call('HEXISTS', queue.l, key) == 0 and string.byte(raw, STATE_AT) == 0 then
      line.head = candidate(line, key, raw)
    end
    line.room = 1
  end

  -- Finds the next item on one way. False: there was no time for it. What has no room now has none
  -- later on in this claim, either.
  local function find(line, way)
    local found = way.found
    if found and not line.taken[found.key]
      and (not line.rooms or room_for(line.queue, line.rooms, found.key)) then
      return true
    end
    way.found = false
    while not (line.rooms and line.rooms.over) do
      local member = way.page[way.place + 1]
      if member then
        way.place = way.place + 1
        local key = sub(member, 9)
        if not line.taken[key] then
          way.found = candidate(line, key, call('HGET', line.queue.i, key))
          if way.found then
            return true
          end
          passing = passing - 1
        end
      elseif way.ended then
        return true
      elseif passing <= 0 then
        return false
      else
        way.from, way.place = way.from + #way.page, 0
        way.page = call('ZRANGE', way.set, way.from, way.from + way.size - 1)
        way.ended, way.size = #way.page < way.size, 200
      end
    end
    return true
  end

  -- Finds the next item of a line. False: there was no time for it.
  function look_further(line)
    line.head = false
    if line.room <= 0 then
      return true
    elseif line.one then
      look_at_key(line)
      return true
    elseif not find(line, line.by_place) then
      return false
    end
    local first = line.by_place.found
    if first and line.by_deadline then
      if not find(line, line.by_deadline) then
        return false
      end
      local near = line.by_deadline.found
      if near and (near.rank[1] < first.rank[1]
        or (near.rank[1] == first.rank[1] and near.rank[2] < first.rank[2])) then
        first = near
      end
    end
    line.head = first
    return true
  end

  -- Takes the head out of a line, and finds the next one. False: there was no time for that.
  function take_head(line)
    local head = line.head
    if line.rooms then
      take_room(line.queue, line.rooms, head.key)
    end
    local _, _, _, place_of = sunpack(ITEM, head.raw)
    line.members[#line.members + 1] = place_member(place_of, head.key)
    line.taken[head.key] = true
    line.room = line.room - 1
    passing = passing - 1
    return look_further(line)
  end

  -- Ranks are compared part by part, as tuples in Python.
  local function sooner(one, other)
    for number = 1, 4 do
      if one[number] ~= other[number] then
        return one[number] < other[number]
      end
    end
    return false
  end

  -- The number of the line whose turn it is.
  local function next_line(lines)
    local best
    for number, line in ipairs(lines) do
      if line.head and (not best or sooner(line.head.rank, lines[best].head.rank)) then
        best = number
      end
    end
    return best
  end

  -- The last item on a way that need not be looked at again: its score and member.
  local function last_on(way)
    local rank = way.from + way.place - (way.found and 2 or 1)
    local member = rank >= 0 and call('ZRANGE', way.set, rank, rank)[1]
    if not member then
      return '', ''
    end
    return call('ZSCORE', way.set, member), member
  end

  -- The same for a line, as a claim that goes on from there is told.
  local function last_of(line)
    local score, member = last_on(line.by_place)
    local near = ''
    if line.by_deadline then
      local deadline, hurried = last_on(line.by_deadline)
      near = hurried ~= '' and spack('>d', tonumber(deadline)) .. hurried or ''
    end
    return score, member, near
  end

  -- As `choose` in claim.lua, and what the caps leave room for, where deadlines bring items forward.
  function choose_by_deadline(queue, room, kinds, limits, urgency, start)
    local line, keys, records = open_line(queue, room, false, kinds, limits, urgency, start), {}, {}
    local in_time, last = look_further(line), false
    while in_time and line.head do
      keys[#keys + 1], records[#records + 1] = line.head.key, line.head.raw
      in_time = take_head(line)
    end
    if not in_time and #keys < room then
      last = { last_of(line) }
    end
    call_many('ZREM', queue.r, line.members)
    return keys, records, last, line.rooms
  end

  -- As `verbs.claim`, but the queues take turns: the one is next whose next item is the most urgent.
  function claim_by_urgency(request)
    local limit, kinds, starts = request[3], set_of(request[6]), request[9] or {}
    local lines, in_time = {}, true
    for number = 1, #request[2] / 2 do
      local queue, room = at(request[2][2 * number - 1]), min(request[2][2 * number], limit)
      local line = open_line(queue, room, request[4], kinds, request[7], request[10][number],
        starts[number])
      lines[number] = line
      in_time = in_time and look_further(line)
    end
    local turns = {} -- {number of a line, keys, records}: what follows each other in one queue
    local count, best = 0, in_time and next_line(lines)
    while best and count < limit do
      local line, turn = lines[best], turns[#turns]
      if not turn or turn[1] ~= best then
        turn = { best, {}, {} }
        turns[#turns + 1] = turn
      end
      turn[2][#turn[2] + 1], turn[3][#turn[3] + 1] = line.head.key, line.head.raw
      count = count + 1
      in_time = take_head(line)
      best = in_time and next_line(lines)
    end
    local answer = {}
    local lasts = {} -- where to go on, as long as nothing has left its place
    for number, line in ipairs(lines) do
      lasts[number] = not in_time and count < limit and { last_of(line) }
    end
    for _, turn in ipairs(turns) do
      local leases = {}
      lease_all(lines[turn[1]].queue, turn[2], turn[3], expiry(request, turn[1]), request[8], leases)
      for number, key in ipairs(turn[2]) do
        add_to(answer, turn[1] - 1, key, leases[number], turn[3][number])
      end
    end
    for number, line in ipairs(lines) do
      if lasts[number] then
        add_to(answer, -number, unpack(lasts[number]))
      end
      call_many('ZREM', line.queue.r, line.members)
      if line.rooms and line.members[1] then
        keep_buckets(line.queue, line.rooms)
      end
    end
    return answer
  end
end
