-- The files of this folder are joined, in the order that SCRIPT_PARTS of link.py has, and run as one
-- script: one call applies one batch, and is answered once, however often it is asked again. The meaning is
-- that of leasedkeyq/model/state.py.
--
-- This file has what every call needs: the batch, how the keys and the records of a queue are laid out, and
-- the writes that a lone request (lone_request.lua) and a batch have in common.
--
-- The keys of a queue (all in one slot):
--   i   hash  key -> item record            o   zset  key by id
--   r   zset  place..key by -priority       t   zset  turn..key by the moment at which it is due
--   l   hash  key -> lease record           m   string  notes on the queue, see below
--   n   zset  key..id..record of each value in line, by these bytes
--   p   zset  key..id by id, of the values in line
--   h   hash  key -> id of the buried item that holds it, and '\0' -> how many values are in their lines
--   b   hash  id -> buried record           bo  zset  id by id   bt  zset  id by age
--   d   hash  id -> result record           do  zset  id by id   dt  zset  id by due
--   bk  zset  key..0..0..id of buried items, and   dk   key..completed..end..id of results, by these bytes
--   df  zset  id by due, of the results that failed, and   dc   of those that were cancelled
--   c   hash  bucket -> its tokens          cf  zset  bucket by the moment at which it is full
--   s   set   workers that have parked a claim, see parked_claims.lua
--   x   hash  pattern -> count of leases    x:  and a pattern: see lease_counts.lua
--   u   zset  id..key by deadline, of the available items that have one of their own
--
-- A script has no memory: whatever a call uses of it is made anew in that call, and most calls are short.
-- So a request that is alone is tried first, with little of it; then it is found out what a batch needs, and
-- functions are made for that only; and what would have to be asked about a queue in every call is noted in
-- one place.
local call = redis.call
local spack, sunpack = struct.pack, struct.unpack
local sub, max, min, huge = string.sub, math.max, math.min, math.huge
local CHUNK = 1000 -- arguments of one command, entries of one step
local SERIAL_SIZE = 16

local input = cmsgpack.unpack(ARGV[1])
local prefix, client, serial = input[1], input[2], input[3]
local edit_token, clustered, lifetime = input[7], input[8], input[9]
local requests, names, editing = input[10], input[11], input[12]
local recorded, reply_key = serial > 0, KEYS[1]

local time = call('TIME')
local micros = (time[1] - 1767225600) * 1000000 + time[2]
local now = input[4] or time[1] + time[2] / 1000000

-- Notes: when they were written; the moment before which nothing comes due, and that before which no
-- result is to be forgotten; whether there are lines (1), keys that are held (2) or both (3); the last
-- number given, on a cluster; until when the queue is edited; then a '+' if leases are counted by pattern, and the token of the edit. Notes last
-- for a day. Without them a call has to look.
local NOTES = '>dddddd'
local NOTES_SIZE = 48
local NOTES_LIFETIME = 86400
local RENEWED_AFTER = 43200 * 1000000 -- microseconds

local ITEM = '>ddddddI4BI2I4' -- then the kind, the history and the value
local ITEM_SIZE = 59
local DEADLINE_AT = 41
local NO_DEADLINE = spack('>d', 0)
local STATE_AT = 53
local KIND_AT = 54 -- where it says how long the kind is
-- The record of a result has its outcome in the place of the state (0 completed, 1 failed, 2 cancelled), and
-- its end in that of its place. Results that did not complete have an index of their own, so that they are
-- counted without a look. The record of a buried item has the state 1 while the item holds its key.
local OUTCOMES = { 'f', 'c' }
local MIDDLE = 2 ^ 52 -- makes numbers below and above zero sort as unsigned ones

-- The line of a key is a range of `n`, as keys have no NUL: its first and its last value, one of its values and
-- a page of it are found at once, however long it is, and however many lines there are. A value in line has
-- no record of its own elsewhere: that would cost 100 bytes more for each. This is what follows the key:
-- NUL, the id, when it was put, priority, not before when, deadline, whether it is buffered, length of its kind;
-- then the kind and the value.
local LINE = '>I8ddddBI2'
local LINE_SIZE = 43

-- Parked claims (parked_claims.lua).
local CLAIM, GIVEN = 0, 1 -- with which the key of a worker begins: its claim, or what that was given

-- Keeps the answer for a store object that asks again, as it was lost on the way. An answer that has changed
-- nothing can be found again: it is not kept if there is no memory for it.
local function keep_answer(answer, changed)
  local record = string.format('%016.0f', serial) .. cmsgpack.pack(answer)
  if not changed then
    local failure = redis.pcall('SET', reply_key, record, 'PX', lifetime).err
    if not failure or string.find(failure, 'OOM', 1, true) then
      return
    end
  end
  call('SET', reply_key, record, 'PX', lifetime)
end

-- What stands between the braces of the keys of a queue, and so decides about their slot.
local function tag(name)
  if name == '' then
    return '%' -- Empty braces say nothing about a slot.
  elseif string.find(name, '[{}%%]') then
    name = string.gsub(name, '[{}%%]', { ['{'] = '%7B', ['}'] = '%7D', ['%'] = '%25' })
  end
  return name
end

-- The kind of an item, which is not unpacked for that: a claim may pass over many.
local function kind_of(raw)
  return sub(raw, ITEM_SIZE + 1, ITEM_SIZE + sunpack('>I2', raw, KIND_AT))
end

-- How the indexes `r` and `t` call an item. Members of one score are in the order of their bytes: that of
-- the places, which lie below zero for what goes to the front. A lease is in `t` with its fence below zero.
local function place_member(place, key)
  return spack('>I8', MIDDLE + place) .. key
end

-- How the index of deadlines calls an item: of two with one deadline, the lower id is first.
local function deadline_member(id, key)
  return spack('>I8', id) .. key
end

-- The first of so many numbers that no other call is given. Ids, fences and places are numbers that follow the
-- server's time, so that they do not come again even if it has lost some. They are counted for the whole
-- store; on a cluster, by queue (`last`, in its notes), and the ids of new items come with the request.
local function reserve_numbers(count, last)
  local first = micros
  if clustered then
    return max(last + 1, first)
  end
  -- Mostly the time is ahead of the last number, and one command will do.
  local before = tonumber(call('SET', prefix .. ':m', first + count - 1, 'GET') or 0)
  if before >= first then
    first = before + 1
    call('SET', prefix .. ':m', first + count - 1)
  end
  return first
end

-- The one way to insert the head of a key: its record, its order, and its place among those that are available
-- or come due. One that is leased at once, to a parked claim, has no place. Answers the record.
--
-- It writes by `call`, at once; by `write` of writes.lua, while an edit may still be undone; or by `gather`,
-- so that a batch of puts makes one command of many.
local function insert(write, base, key, value, kind, id, place, priority, due, deadline, leased, put_at)
  local record = spack(ITEM, id, put_at or now, priority, place, due, deadline, 0, due ~= 0 and 1 or 0, #kind, 0)
    .. kind .. value
  write('HSET', base .. 'i', key, record)
  write('ZADD', base .. 'o', id, key)
  if due ~= 0 then
    write('ZADD', base .. 't', due, place_member(place, key))
  elseif not leased then
    write('ZADD', base .. 'r', -priority, place_member(place, key))
    if deadline ~= 0 then
      write('ZADD', base .. 'u', deadline, deadline_member(id, key))
    end
  end
  return record
end

-- How an index by key calls what has left its key, behind the key: the last of a key is the one that was completed
-- last. `completed` (1 or 0) and the end are those of a result.
local ASIDE = '>BdI8'

-- Writes what has left its key, by any of these ways: a buried item into `b` or a result into `d`. `order` is
-- by what the oldest of them is found: the age of a buried item, or when a result is to be forgotten. Of a
-- result, `outcome` is the index of those that did not complete, if it is one of them, and `ended` its end; both
-- are false for a buried item.
local function write_aside(write, part, id, key, record, order, outcome, ended)
  local number = string.format('%.0f', id)
  write('HSET', part, number, record)
  write('ZADD', part .. 'o', id, number)
  write('ZADD', part .. 't', order, number)
  write('ZADD', part .. 'k', 0,
    key .. '\0' .. spack(ASIDE, ended and not outcome and 1 or 0, ended or 0, id))
  if outcome then
    write('ZADD', part .. outcome, order, number)
  end
end

-- The record of a lease. Its token cannot be guessed by one who knows the fence: the seed comes with the
-- claim, from the random numbers of the client. So a claim that is asked again has the same tokens. What is
-- behind the 32 random digits of the seed is the end of the token: it says who holds the lease.
local function lease_record(fence, expires, seed)
  return spack('>ddd', fence, now, expires) .. sub(redis.sha1hex(seed .. spack('>d', fence)), 1, 32)
    .. sub(seed, 33)
end
