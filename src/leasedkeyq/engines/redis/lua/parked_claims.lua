-- Parked claims. A worker that has found nothing parks its claim; a put of a lone item leases it to
-- one that is parked at its queue, and publishes it to the worker, which has it then without asking (see
-- lone_request.lua). Should that message be lost, the worker finds the lease when it takes its claim back,
-- which it does before it claims again. An idle worker of lanes starts a command 0.7 ms after its submit so,
-- and 1.5 ms after it without: the way back and forth to claim it is gone.
--
-- The key `s` of a worker is its claim (CLAIM; until when, which turn, the seed of its tokens, and for
-- each claim its kinds and {queue, lease time, ...}) or what that was given (GIVEN). The channel of that
-- name is where it is told. The set `s` of a queue has workers that may have parked a claim there.
local passed_over = 0 -- claims that are not made, as something was given meanwhile

if parked then
  local given = {}

  -- In the slot of no queue: a worker may wait at many.
  local function place_of(worker)
    return prefix .. ':{' .. worker .. '}:s'
  end

  -- {'unpark', worker, turn, claims}: what its claim was given, or {}. If there is anything, so many
  -- claims behind this request are passed over: the worker has less room than it thought. It may be
  -- asked again.
  function verbs.unpark(request)
    local worker, turn = request[2], request[3]
    local raw = call('GET', place_of(worker))
    if not raw then
      return {}
    elseif string.byte(raw) ~= GIVEN then
      call('DEL', place_of(worker))
      return {}
    end
    local _, its_turn, name_size, key_size = sunpack('>BdI4I4', raw)
    local name = sub(raw, 18, 17 + name_size)
    local key = sub(raw, 18 + name_size, 17 + name_size + key_size)
    local lease = sub(raw, 18 + name_size + key_size)
    local base = prefix .. ':{' .. tag(name) .. '}:'
    if its_turn ~= turn or call('HGET', base .. 'l', key) ~= lease then
      return {} -- or its lease has ended
    end
    given[worker], passed_over = true, request[4]
    return { turn, name, key, lease, call('HGET', base .. 'i', key) }
  end

  -- {'park', worker, turn, milliseconds, seed, claims}: parks these claims, if they were made just
  -- before and have found nothing. 1: they were parked.
  function verbs.park(request, answers, place)
    local worker, turn, milliseconds, seed = request[2], request[3], request[4], request[5]
    local parked_claims = request[6]
    for number = place - #parked_claims, place - 1 do
      if given[worker] or not answers[number] or answers[number][1] then
        return 0
      end
    end
    local record = string.char(CLAIM)
      .. cmsgpack.pack({ now + milliseconds / 1000, turn, seed, parked_claims })
    -- Without memory for it, the worker is woken as if it had parked none.
    if redis.pcall('SET', place_of(worker), record, 'PX', milliseconds).err then
      return 0
    end
    for number = 1, #parked_claims do
      local parts = parked_claims[number][2]
      for at = 1, #parts, 2 do
        local key = prefix .. ':{' .. tag(parts[at]) .. '}:s'
        if call('SADD', key, worker) == 1 then
          -- A put strikes off a worker that has gone, but there may be no puts: so each worker that parks a
          -- claim looks at two others, and the set does not grow without end.
          for _, other in ipairs(call('SRANDMEMBER', key, 2)) do
            if call('EXISTS', place_of(other)) == 0 then
              call('SREM', key, other)
            end
          end
        end
        call('EXPIRE', key, NOTES_LIFETIME)
      end
    end
    return 1
  end
end
