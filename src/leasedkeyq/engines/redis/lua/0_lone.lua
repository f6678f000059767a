-- What is asked most, alone: a put of one item, a claim of the next items of one queue, an ack. This is
-- what 3_changes.lua and 4_claims.lua do, in less than half the time. Whatever is out of the ordinary
-- is left to them, before anything is written: a queue that is edited, whose leases are counted by
-- pattern or that was not used for long, something that is due, buffered items, a repeated call.
local FEW = 10 -- items of such a claim
local GIVEN = 1 -- begins what tells a worker of a lease
local GIVEN_SIZE = 1024 * 1024 -- bytes of a value that is sent to a worker without its asking
local request = requests[1]
local plain = false
if recorded and request and not requests[2] and names[1] and not names[2] and edit_token == '' then
  local verb = request[1]
  if verb == 'put' then
    plain = request[3][1] and not request[3][2] and not request[7] and request[8] == 0
  elseif verb == 'claim' then
    local room = min(request[2][2], request[3])
    plain = room > 0 and room <= FEW and not request[2][3] and not request[4] and not request[7]
      and not request[9] and (not request[5] or now + request[5] > now)
  else
    plain = verb == 'ack'
  end
end

-- The turn of a parked claim that takes an item of a queue, its lease time, and the seed of its token.
local function parked_claim_for(left, name, kind)
  if string.byte(left) == GIVEN then
    return nil
  end
  local till, turn, seed, parked_claims = unpack(cmsgpack.unpack(sub(left, 2)))
  for number = 1, till > now and #parked_claims or 0 do
    local wanted, parts = parked_claims[number][1], parked_claims[number][2]
    local fits = not wanted
    for place_in = 1, wanted and #wanted or 0 do
      fits = fits or wanted[place_in] == kind
    end
    for first = 1, fits and #parts or 0, 2 do
      local lease_time = parts[first + 1]
      if parts[first] == name and (not lease_time or now + lease_time > now) then
        return turn, lease_time, seed
      end
    end
  end
end

while plain do -- once; `break` leaves the request to the rest
  local verb, base = request[1], prefix .. ':{' .. tag(names[1]) .. '}:'
  local found = call('MGET', base .. 'm', reply_key)
  local notes, before = found[1], found[2]
  if not notes or #notes > NOTES_SIZE or before and tonumber(sub(before, 1, SERIAL_SIZE)) >= serial then
    break
  end
  local written, earliest, over, buffered, last = sunpack(NOTES, notes)
  if earliest <= now or over + 1 <= now or buffered > 0 or written + RENEWED_AFTER < micros then
    break
  end
  local answer, kept
  local noted, changed = false, true

  if verb == 'put' then
    local key, value, kind, priority = request[3][1], request[4][1], request[9], request[6]
    local id, place = micros, micros
    if clustered then
      id, place = request[11], max(last + 1, micros)
    end
    local deadline = request[10] and now + request[10] or 0
    local record = spack(ITEM, id, now, priority or 0, place, 0, deadline, 0, 0, #kind, 0) .. kind
      .. value
    if call('HSETNX', base .. 'i', key, record) == 1 then
      -- If nothing else is there, a worker that found nothing may have parked its claim (see
      -- 5_parked_claims.lua). Not one of the putter's own: it would start what it does not know yet to be
      -- put.
      local place_of, turn, lease_time, seed
      for _ = 1, not clustered and #value <= GIVEN_SIZE and 3 or 0 do
        local worker = redis.pcall('SRANDMEMBER', base .. 's')
        if type(worker) ~= 'string' or call('EXISTS', base .. 'r') == 1 then
          break
        elseif sub(worker, 1, #client) ~= client then
          place_of = prefix .. ':{' .. worker .. '}:s'
          local left = call('GET', place_of)
          local heard = left and redis.pcall('PUBSUB', 'NUMSUB', place_of)[2] or 0
          if heard == 0 then
            redis.pcall('SREM', base .. 's', worker)
          else
            turn, lease_time, seed = parked_claim_for(left, names[1], kind)
          end
          if turn then
            break
          end
        end
      end
      if clustered then
        last, noted = place, true
      else
        local after = turn and id + 1 or id -- with the fence of a lease
        local number = tonumber(call('SET', prefix .. ':m', after, 'GET') or 0)
        if number >= id then
          id, place, after = number + 1, number + 1, after + number + 1 - id
          call('SET', prefix .. ':m', after)
          record = spack(ITEM, id, now, priority or 0, place, 0, deadline, 0, 0, #kind, 0) .. kind
            .. value
          call('HSET', base .. 'i', key, record)
        end
      end
      call('ZADD', base .. 'o', id, key)
      local fence, expires, lease, told
      if turn then
        fence, expires = id + 1, lease_time and now + lease_time or 0
        lease = spack('>ddd', fence, now, expires)
          .. sub(redis.sha1hex(seed .. spack('>d', fence)), 1, 32)
        told = spack('>BdI4I4', GIVEN, turn, #names[1], #key) .. names[1] .. key .. lease
        if type(redis.pcall('PUBLISH', place_of, told .. record)) ~= 'number' then
          turn = nil -- Who may not tell the worker gives it nothing.
        end
      end
      if turn then
        call('SET', place_of, told, 'PX', lifetime)
        call('HSET', base .. 'l', key, lease)
        if expires ~= 0 then
          call('ZADD', base .. 't', expires, spack('>I8', MIDDLE - fence) .. key)
          if expires < earliest then
            earliest, noted = expires, true
          end
        end
      else
        call('ZADD', base .. 'r', -(priority or 0), spack('>I8', MIDDLE + place) .. key)
        if deadline ~= 0 then
          call('ZADD', base .. 'u', deadline, spack('>I8', id) .. key)
        end
      end
    else
      local raw = call('HGET', base .. 'i', key)
      local old, before_that, _, kinds, past
      id, _, old, _, _, before_that, _, _, kinds, past = sunpack(ITEM, raw)
      if request[5] ~= 'update' or (priority and priority ~= old) or before_that ~= deadline then
        break
      end
      local history = sub(raw, ITEM_SIZE + kinds + 1, ITEM_SIZE + kinds + past)
      record = sub(raw, 1, DEADLINE_AT - 1) .. spack('>d', deadline)
        .. sub(raw, DEADLINE_AT + 8, KIND_AT - 1) .. spack('>I2I4', #kind, past) .. kind .. history
        .. value
      call('HSET', base .. 'i', key, record)
    end
    answer = { id }
    kept = answer

  elseif verb == 'claim' then
    if request[10] and call('EXISTS', base .. 'u') == 1 then
      break -- A deadline may bring an item forward.
    end
    local room, wanted, seed = min(request[2][2], request[3]), request[6], request[8]
    local expires = request[5] and now + request[5] or 0
    local members, records, count, intact = {}, {}, 0, true
    if wanted then
      local most = room + 4
      local page = call('ZRANGE', base .. 'r', 0, most - 1)
      for number = 1, #page do
        local raw = call('HGET', base .. 'i', sub(page[number], 9))
        intact = intact and raw and #raw >= ITEM_SIZE
        if not intact then
          break
        end
        local kind = sub(raw, ITEM_SIZE + 1, ITEM_SIZE + sunpack('>I2', raw, KIND_AT))
        for place_in = 1, #wanted do
          if wanted[place_in] == kind then
            count = count + 1
            members[count], records[count] = page[number], raw
            break
          end
        end
        if count == room then
          break
        end
      end
      if not intact or (count < room and #page == most) then
        break -- It is damaged, as the rest will find out, or the others may be further back.
      end
      if count > 0 then
        call('ZREM', base .. 'r', unpack(members))
      end
    else
      local popped = call('ZPOPMIN', base .. 'r', room) -- with their scores
      for number = 1, #popped, 2 do
        count = count + 1
        members[count] = popped[number]
        records[count] = call('HGET', base .. 'i', sub(popped[number], 9))
        intact = intact and records[count] and #records[count] >= ITEM_SIZE
      end
      if not intact then
        -- As if it had not been asked; the rest will find out what is damaged.
        for number = 1, #popped, 2 do
          call('ZADD', base .. 'r', popped[number + 1], popped[number])
        end
        break
      end
    end
    answer, kept, changed = {}, {}, count > 0
    if changed then
      local fence -- the one before the first
      if clustered then
        last, noted = max(last + 1, micros) + count - 1, true
        fence = last - count
      else
        fence = micros - 1
        local before = tonumber(call('SET', prefix .. ':m', fence + count, 'GET') or 0)
        if before > fence then
          fence = before
          call('SET', prefix .. ':m', fence + count)
        end
      end
      local held, timed = {}, {}
      for number = 1, count do
        fence = fence + 1
        local key, raw = sub(members[number], 9), records[number]
        if sub(raw, DEADLINE_AT, DEADLINE_AT + 7) ~= NO_DEADLINE then
          call('ZREM', base .. 'u', spack('>I8', sunpack('>d', raw)) .. key)
        end
        local lease = spack('>ddd', fence, now, expires)
          .. sub(redis.sha1hex(seed .. spack('>d', fence)), 1, 32)
        local second, size, third = 2 * number, 4 * number, 3 * number
        held[second - 1], held[second] = key, lease
        timed[second - 1], timed[second] = expires, spack('>I8', MIDDLE - fence) .. key
        answer[size - 3], answer[size - 2] = 0, key
        answer[size - 1], answer[size] = lease, records[number]
        kept[third - 2], kept[third - 1], kept[third] = 0, key, lease
      end
      call('HSET', base .. 'l', unpack(held))
      if expires ~= 0 then
        call('ZADD', base .. 't', unpack(timed))
        if expires < earliest then
          earliest, noted = expires, true
        end
      end
    end

  else
    local key, token, keep = request[3], request[4], request[6]
    local lease = call('HGET', base .. 'l', key)
    if lease and token ~= '' and sub(lease, 25) == token then
      local fence, _, expires = sunpack('>ddd', lease)
      local raw = keep > 0 and call('HGET', base .. 'i', key)
      call('HDEL', base .. 'l', key)
      call('HDEL', base .. 'i', key)
      call('ZREM', base .. 'o', key)
      if expires ~= 0 then
        call('ZREM', base .. 't', spack('>I8', MIDDLE - fence) .. key)
      end
      if raw then
        local id, put_at, priority, _, _, _, attempt, _, kinds, past = sunpack(ITEM, raw)
        local until_then, number = now + keep, string.format('%.0f', id)
        local results = base .. 'd'
        call('HSET', results, number, spack('>I4I4', #key, 0) .. key
          .. spack(ITEM, id, put_at, priority, 0, until_then, 0, attempt + 1, request[7], kinds, past)
          .. sub(raw, ITEM_SIZE + 1, ITEM_SIZE + kinds + past) .. request[5])
        call('ZADD', results .. 'o', id, number)
        call('ZADD', results .. 't', until_then, number)
        call('ZADD', results .. 'k', 0, key .. '\0' .. number)
        if OUTCOMES[request[7]] then
          call('ZADD', results .. OUTCOMES[request[7]], until_then, number)
        end
        if until_then < over then
          over, noted = until_then, true
        end
      end
      answer = 1
    else
      answer, changed = { 'lease' }, false
    end
    kept = answer
  end

  if changed then
    redis.pcall('PUBLISH', base .. 'w', client)
  end
  if noted then
    call('SET', base .. 'm', spack(NOTES, micros, earliest, over, 0, last, 0), 'EX', NOTES_LIFETIME)
  end
  keep_answer({ { kept } }, changed)
  return { 'done', { answer }, changed and names or nil }
end
