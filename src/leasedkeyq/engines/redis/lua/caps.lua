-- The limits that a claim obeys: leases at a time, and tokens of buckets.
local choose_key, rooms_of, room_for, take_room, keep_buckets, forget_buckets, next_token

if caps then
  -- A bucket is read once in a claim. One that is full is as good as none, whatever is stored.
  local function bucket_of(queue, rooms, name)
    local bucket = rooms.buckets[name]
    if bucket == nil then
      local raw = call('HGET', queue.base .. 'c', name)
      bucket = false
      if raw then
        local level, since, next_at, full_at = sunpack('>dddd', raw)
        bucket = full_at > now and { level = level, at = since, full_at = full_at }
      end
      rooms.buckets[name] = bucket
    end
    return bucket
  end

  -- What the caps of a claim leave room for in one queue.
  function rooms_of(queue, caps)
    local rooms = { caps = {}, leased = {}, buckets = {}, taken = {}, over = false }
    for _, cap in ipairs(caps) do
      if cap[1] == queue.name then
        rooms.caps[#rooms.caps + 1] = {
          pattern = cap[2], in_flight = cap[3], rate = cap[4], burst = cap[5], each = cap[6],
          matches = matcher(cap[2]),
        }
      end
    end
    return #rooms.caps > 0 and rooms
  end

  -- A cap for each key has a bucket by key, any other one bucket for all that match.
  local function bucket_name(cap, key)
    return (cap.each and '1' or '0') .. cap.pattern .. '\0' .. (cap.each and key or '')
  end

  -- Leases under a pattern are counted once in a claim, which then counts its own (`take_room`).
  local function has_room(queue, rooms, cap, key)
    if cap.in_flight then
      if not rooms.leased[cap.pattern] then
        rooms.leased[cap.pattern] = count_of(queue, cap.pattern)
      end
      if rooms.leased[cap.pattern] >= cap.in_flight then
        return false
      end
    end
    if not cap.rate then
      return true
    end
    local bucket = bucket_of(queue, rooms, bucket_name(cap, key))
    return not bucket or bucket.full_at <= now or bucket.at + (1 - bucket.level) / cap.rate <= now
  end

  -- The bucket is written with the others, when the claim has all its items (`keep_buckets`).
  local function take_token(queue, rooms, cap, key)
    local name = bucket_name(cap, key)
    local bucket = bucket_of(queue, rooms, name)
    local level = cap.burst
    if bucket and bucket.full_at > now then
      level = min(cap.burst, bucket.level + (now - bucket.at) * cap.rate)
    end
    level = max(level - 1, 0)
    local taken = {
      level = level, at = now, next_at = now + (1 - level) / cap.rate,
      full_at = now + (cap.burst - level) / cap.rate,
    }
    rooms.buckets[name], rooms.taken[name] = taken, taken
  end

  -- The caps of a key, if it has room under all of them.
  function room_for(queue, rooms, key)
    local caps = {}
    for _, cap in ipairs(rooms.caps) do
      if cap.matches(key) then
        if not has_room(queue, rooms, cap, key) then
          rooms.over = cap.pattern == '*' and not cap.each
          return false
        end
        caps[#caps + 1] = cap
      end
    end
    return caps
  end

  -- All caps of a key have room, or nothing is taken: an item that is passed over uses up no token.
  function take_room(queue, rooms, key)
    local counted, caps = {}, room_for(queue, rooms, key)
    if not caps then
      return false
    end
    for _, cap in ipairs(caps) do
      if cap.in_flight and not counted[cap.pattern] then
        counted[cap.pattern] = true
        rooms.leased[cap.pattern] = rooms.leased[cap.pattern] + 1
      end
      if cap.rate then
        take_token(queue, rooms, cap, key)
      end
    end
    return true
  end

  -- A full bucket says nothing any more. True: there may be more of them.
  function forget_buckets(queue, most)
    local full = call('ZRANGEBYSCORE', queue.base .. 'cf', '-inf', now, 'LIMIT', 0, most)
    if #full > 0 then
      call('HDEL', queue.base .. 'c', unpack(full))
      call('ZREM', queue.base .. 'cf', unpack(full))
      call('ZREM', queue.base .. 'cn', unpack(full))
    end
    return #full == most
  end

  -- Nothing is kept for ever: the buckets go, at the latest, an hour after the last one is full.
  function keep_buckets(queue, rooms)
    local longest, count = 0, 0
    for name, bucket in pairs(rooms.taken) do
      call('HSET', queue.base .. 'c', name,
        spack('>dddd', bucket.level, bucket.at, bucket.next_at, bucket.full_at))
      call('ZADD', queue.base .. 'cf', bucket.full_at, name)
      if bucket.next_at > now then
        call('ZADD', queue.base .. 'cn', bucket.next_at, name)
      else
        call('ZREM', queue.base .. 'cn', name)
      end
      longest, count = max(longest, bucket.full_at - now), count + 1
    end
    longest = math.ceil(longest) + 3600
    if longest > 3600 and call('TTL', queue.base .. 'c') < longest then
      call('EXPIRE', queue.base .. 'c', longest)
      call('EXPIRE', queue.base .. 'cf', longest)
    end
    if call('TTL', queue.base .. 'cn') < longest then
      call('EXPIRE', queue.base .. 'cn', longest)
    end
    -- More than were made, so that they do not become ever more.
    for _ = 0, 2 * count, 20 do
      if not forget_buckets(queue, 20) then
        break
      end
    end
  end

  -- A worker that was kept back by a rate asks again at that moment: no other call would wake it.
  function next_token(queue)
    local first = call('ZRANGEBYSCORE', queue.base .. 'cn', '(' .. now_text, '+inf', 'WITHSCORES',
      'LIMIT', 0, 1)
    return first[2] and tonumber(first[2])
  end

  -- As `choose` in claim.lua, for a claim of one key: its item, if that is available.
  function choose_key(queue, key, kinds, rooms)
    local raw = call('HGET', queue.i, key)
    if not raw or call('HEXISTS', queue.l, key) == 1 then
      return {}, {}
    end
    local item = unpack_item(raw)
    if item.state ~= 0 or (kinds and not kinds[item.kind]) then
      return {}, {}
    end
    if rooms and not take_room(queue, rooms, key) then
      return {}, {}
    end
    leave(queue, key, item)
    return { key }, { raw }
  end
end
