-- Carrying messages for another job store. Keys: see streams.lua.
-- Guarantees: a message is in its stream until it is accepted; one receiver has it at a time, until the key of that
-- receiver expires; no message is taken from a receiver whose key exists.

-- name: send
-- {new_lanes, rows}: creates the new lanes and adds all messages; a row: lane, field, value, field, value ... Returns
-- the lanes that are missing: then no message was added.
local new_lanes, rows = unpack(cmsgpack.unpack(ARGV[1]))
for _, lane in ipairs(new_lanes) do create_lane(lane) end
local missing, seen = {}, {}
for _, row in ipairs(rows) do
  local lane = row[1]
  if not seen[lane] then
    seen[lane] = true
    if redis.call('EXISTS', stream_key(lane)) == 0 then missing[#missing + 1] = lane end
  end
end
if #missing > 0 then return missing end
for _, row in ipairs(rows) do
  redis.call('XADD', stream_key(row[1]), '*', unpack(row, 2))
end
for lane in pairs(seen) do notify('m', lane) end
return missing

-- name: receive
-- {receiver, ttl, former, lanes, new_lanes, accepted, returned, is_check, capacity}: one call of a receiver. It renews
-- the receiver's key for ttl milliseconds, gives up its former names in all of its lanes, creates the new lanes,
-- deletes accepted messages and returns others, by lane, and takes messages of each lane up to its capacity. A check
-- also removes dead receivers, and finds out whether the server was restarted. Returns {damaged, {lane, id, fields,
-- lane, id, fields ...}}: damaged lanes are missing, or may have lost messages.
local receiver, ttl, former, lanes, new_lanes, accepted, returned, is_check, capacity =
  unpack(cmsgpack.unpack(ARGV[1]))
allow_when_full()
redis.call('SET', root .. ':receiver:' .. receiver, 1, 'PX', ttl)
for _, lane in ipairs(new_lanes) do create_lane(lane) end
for lane, ids in pairs(accepted) do delete_entries(lane, ids) end
for lane, ids in pairs(returned) do return_entries(lane, ids) end
for _, name in ipairs(former) do
  for _, lane in ipairs(lanes) do remove_consumer(lane, name) end
  redis.call('DEL', root .. ':receiver:' .. name)
end

local damaged, answer = {}, {}
local function append(lane, entries)
  for _, entry in ipairs(entries) do
    answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = lane, entry[1], entry[2]
  end
end

-- Claim messages that were returned; skip those that were deleted since.
local function claim_returned(lane, ids)
  local key, entries = stream_key(lane), {}
  for _, id in ipairs(ids) do
    local entry = redis.call('XCLAIM', key, GROUP, receiver, 0, id)[1]
    if entry and entry[2] then
      entries[#entries + 1] = entry
    else
      redis.call('XACK', key, GROUP, id)
    end
  end
  append(lane, entries)
  return #entries
end

local run = is_check and server_run_id()
for at = 1, #capacity, 2 do
  local lane, limit = capacity[at], capacity[at + 1]
  local key = stream_key(lane)
  local returned_ids = pending_ids(lane, RETURNED, limit)
  if not returned_ids or (run and redis.call('HGET', root .. ':server_runs', lane) ~= run) then
    damaged[#damaged + 1] = lane
  end
  if returned_ids then
    if is_check then
      remove_dead_consumers(lane)
      returned_ids = pending_ids(lane, RETURNED, limit)
    end
    local remaining = limit - claim_returned(lane, returned_ids)
    if remaining > 0 then
      local new = redis.call('XREADGROUP', 'GROUP', GROUP, receiver, 'COUNT', remaining, 'STREAMS', key, '>')
      if new then append(lane, new[1][2]) end
    end
  end
end
return {damaged, answer}

-- name: close_receiver
-- {names, lanes, accepted}: closes a receiver under all its names; its messages are returned.
local names, lanes, accepted = unpack(cmsgpack.unpack(ARGV[1]))
allow_when_full()
for lane, ids in pairs(accepted) do delete_entries(lane, ids) end
for _, name in ipairs(names) do
  for _, lane in ipairs(lanes) do remove_consumer(lane, name) end
  redis.call('DEL', root .. ':receiver:' .. name)
end
return 0

-- name: purge
-- {lanes}: deletes the messages that wait there. Those that a receiver has can still be accepted or returned.
allow_when_full()
for _, lane in ipairs(unpack(cmsgpack.unpack(ARGV[1]))) do
  redis.call('XTRIM', stream_key(lane), 'MAXLEN', 0)
  redis.pcall('XGROUP', 'DELCONSUMER', stream_key(lane), GROUP, RETURNED)
end
return 0

-- name: remove
-- {lanes}: deletes the streams of these lanes.
allow_when_full()
for _, lane in ipairs(unpack(cmsgpack.unpack(ARGV[1]))) do
  redis.call('DEL', stream_key(lane))
  redis.call('HDEL', root .. ':server_runs', lane)
end
return 0

-- name: reply
-- {documents}: appends to the list that is named by the root here, and keeps it for an hour. A key of another type is
-- left alone.
local kind = redis.call('TYPE', root).ok
if kind == 'none' or kind == 'list' then
  redis.call('RPUSH', root, unpack(unpack(cmsgpack.unpack(ARGV[1]))))
  redis.call('EXPIRE', root, 3600)
end
return 0
