-- What is asked most, alone: a put of one item, a claim of the next items of one queue, an ack. This is
-- what put.lua, claim.lua and settle.lua do, with a tenth of the functions and tables. It buys half of the
-- server's time: 24 microseconds for a put against 48 without this file, 30 against 50 for a claim, 18
-- against 42 for an ack; and a caller that waits for each put or ack makes a fifth more of them. Whatever
-- is out of the ordinary is left to them, before anything is written: a queue that is edited, whose leases
-- are counted by pattern or that was not used for long, something that is due, a put that is more than a new
-- key, a plain update or an append, a repeated call.
local FEW = 10 -- items of such a claim
local request = requests[1]
local plain = false
if recorded and request and not requests[2] and names[1] and not names[2] and edit_token == '' then
  local verb = request[1]
  if verb == 'put' then
    plain = request[3][1] and not request[3][2] and not request[7] and request[8] == 0 and request[11] == 0
  elseif verb == 'claim' then
    local room = min(request[2][2], request[3])
    plain = room > 0 and room <= FEW and not request[2][3] and not request[4] and not request[7]
      and not request[9] and (not request[5] or now + request[5] > now)
  else
    plain = verb == 'ack'
  end
end

-- The turn of a parked claim that takes an item of a queue, its lease time, and the seed of its token.
local function turn_of(parked, name, kind)
  if string.byte(parked) == GIVEN then
    return nil
  end
  local till, turn, seed, claims = unpack(cmsgpack.unpack(sub(parked, 2)))
  for number = 1, till > now and #claims or 0 do
    local wanted, parts = claims[number][1], claims[number][2]
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
  local written, earliest, over, lines, last = sunpack(NOTES, notes)
  local lined, holding = lines % 2 == 1, lines >= 2
  if earliest <= now or over + 1 <= now or written + RENEWED_AFTER < micros then
    break
  end
  local answer, kept -- what is told, and what of it is kept in case the answer is lost
  local noted, changed = false, true

  if verb == 'put' then
    local key, value, kind, priority = request[3][1], request[4][1], request[9], request[6]
    local deadline = request[10] and now + request[10] or 0
    local raw, id = call('HGET', base .. 'i', key), nil
    local outcome
    if raw and request[5] == 'append' and not clustered then
      id = reserve_numbers(1)
      local named = key .. '\0'
      call('ZADD', base .. 'n', 0, named
        .. spack(LINE, id, now, priority or 0, 0, deadline, 0, #kind) .. kind .. value)
      call('ZADD', base .. 'p', id, named .. spack('>I8', id))
      if not lined then
        lines, noted = lines + 1, true
      end
      outcome = 'p'
    elseif raw then
      local _, old, before_that, kinds, past
      id, _, old, _, _, before_that, _, _, kinds, past = sunpack(ITEM, raw)
      if request[5] ~= 'update' or lined or (priority and priority ~= old) or before_that ~= deadline then
        break
      end
      call('HSET', base .. 'i', key, sub(raw, 1, KIND_AT - 1) .. spack('>I2I4', #kind, past) .. kind
        .. sub(raw, ITEM_SIZE + kinds + 1, ITEM_SIZE + kinds + past) .. value)
      outcome = 'u'
    elseif holding and call('HEXISTS', base .. 'h', key) == 1 then
      break
    else
      -- If nothing else is there, a worker that found nothing may have parked its claim. Not one of the
      -- putter's own: it would start what it does not know yet to be put.
      local GIVEN_SIZE = 1024 * 1024 -- bytes of a value that is sent to a worker without its asking
      local place_of, turn, lease_time, seed
      for _ = 1, not clustered and #value <= GIVEN_SIZE and 3 or 0 do
        local worker = redis.pcall('SRANDMEMBER', base .. 's')
        if type(worker) ~= 'string' or call('EXISTS', base .. 'r') == 1 then
          break
        elseif sub(worker, 1, #client) ~= client then
          place_of = prefix .. ':{' .. worker .. '}:s'
          local parked = call('GET', place_of)
          local heard = parked and redis.pcall('PUBSUB', 'NUMSUB', place_of)[2] or 0
          if heard == 0 then
            redis.pcall('SREM', base .. 's', worker)
          else
            turn, lease_time, seed = turn_of(parked, names[1], kind)
          end
          if turn then
            break
          end
        end
      end
      local place = reserve_numbers(turn and 2 or 1, last) -- with the fence of a lease
      id = place
      if clustered then
        id, last, noted = request[12], place, true
      end
      local record = insert(call, base, key, value, kind, id, place, priority or 0, 0, deadline, turn)
      if turn then
        local fence, expires = id + 1, lease_time and now + lease_time or 0
        local lease = lease_record(fence, expires, seed)
        local told = spack('>BdI4I4', GIVEN, turn, #names[1], #key) .. names[1] .. key .. lease
        local message = told .. record
        if #seed > 32 then
          -- Its token tells a holder. Workers of older programs tell none, and know only leases of one size.
          message = spack('>BI4', 2, #lease) .. message
        end
        if type(redis.pcall('PUBLISH', place_of, message)) ~= 'number' then
          -- The user of the server may not publish: the worker would not hear of the item, so it is available.
          insert(call, base, key, value, kind, id, place, priority or 0, 0, deadline, false)
        else
          call('SET', place_of, told, 'PX', lifetime)
          call('HSET', base .. 'l', key, lease)
          if expires ~= 0 then
            call('ZADD', base .. 't', expires, place_member(-fence, key))
            if expires < earliest then
              earliest, noted = expires, true
            end
          end
        end
      end
    end
    answer = { id, outcome }
    kept = answer

  elseif verb == 'claim' then
    if request[10] and call('EXISTS', base .. 'u') == 1 then
      break -- A deadline may bring an item forward.
    end
    local room, wanted = min(request[2][2], request[3]), request[6]
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
        local kind = kind_of(raw)
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
      local expires, first = request[5] and now + request[5] or 0, reserve_numbers(count, last)
      if clustered then
        last, noted = first + count - 1, true
      end
      local held, timed = {}, {}
      for number = 1, count do
        local fence, key, raw = first + number - 1, sub(members[number], 9), records[number]
        if sub(raw, DEADLINE_AT, DEADLINE_AT + 7) ~= NO_DEADLINE then
          call('ZREM', base .. 'u', deadline_member(sunpack('>d', raw), key))
        end
        local lease = lease_record(fence, expires, request[8])
        local second, third, fourth = 2 * number, 3 * number, 4 * number
        held[second - 1], held[second] = key, lease
        timed[second - 1], timed[second] = expires, place_member(-fence, key)
        answer[fourth - 3], answer[fourth - 2], answer[fourth - 1], answer[fourth] = 0, key, lease, raw
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
    local key, token, keep, outcome = request[3], request[4], request[6], request[7]
    local lease = call('HGET', base .. 'l', key)
    if lease and token ~= '' and sub(lease, 25) == token then
      local fence, _, expires = sunpack('>ddd', lease)
      local raw = keep > 0 and call('HGET', base .. 'i', key)
      local first
      if lined then
        first = call('ZRANGEBYLEX', base .. 'n', '[' .. key .. '\0', '(' .. key .. '\1', 'LIMIT', 0, 1)[1]
      end
      call('HDEL', base .. 'l', key)
      if first then
        -- The first of its line follows it.
        local at = #key + 2
        local id, put_at, its_priority, due, deadline, _, kinds = sunpack(LINE, first, at)
        at = at + LINE_SIZE
        local name, place = key .. '\0' .. spack('>I8', id), reserve_numbers(1, last)
        due = due > now and due or 0
        insert(call, base, key, sub(first, at + kinds), sub(first, at, at + kinds - 1), id, place,
          its_priority, due, deadline, false, put_at)
        call('ZREMRANGEBYLEX', base .. 'n', '[' .. name,
          '(' .. key .. '\0' .. spack('>I8', id + 1))
        call('ZREM', base .. 'p', name)
        if clustered then
          last, noted = place, true
        end
        if due ~= 0 and due < earliest then
          earliest, noted = due, true
        end
        if call('EXISTS', base .. 'n') == 0 then
          lines, noted = lines - 1, true
        end
      else
        call('HDEL', base .. 'i', key)
        call('ZREM', base .. 'o', key)
      end
      if expires ~= 0 then
        call('ZREM', base .. 't', place_member(-fence, key))
      end
      if raw then
        local id, put_at, priority, _, _, _, attempt, _, kinds, past = sunpack(ITEM, raw)
        write_aside(call, base .. 'd', id, key, spack('>I4I4', #key, 0) .. key
          .. spack(ITEM, id, put_at, priority, now, now + keep, 0, attempt + 1, outcome, kinds, past)
          .. sub(raw, ITEM_SIZE + 1, ITEM_SIZE + kinds + past) .. request[5], now + keep, OUTCOMES[outcome],
          now)
        if now + keep < over then
          over, noted = now + keep, true
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
    call('SET', base .. 'm', spack(NOTES, micros, earliest, over, lines, last, 0), 'EX', NOTES_LIFETIME)
  end
  keep_answer({ { kept } }, changed)
  return { 'done', { answer }, changed and names or nil }
end
