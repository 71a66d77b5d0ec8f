-- Streams, shared by the scripts of the transport: a stream for each lane, read by one consumer group. Included after
-- keys.lua and jobs.lua. The name of a lane is <kind>:<queue> here.
--
--   <root>:stream:<lane>     stream  messages, until they are accepted; a field for each attribute
--   <root>:receiver:<name>   string  exists while the receiver is alive: it expires
--   <root>:server_runs       hash    from a lane to the run id of the server when the lane was created
--
-- A message that a receiver has not accepted is pending in the group under its name. A returned message is pending
-- under the name '-', which no receiver has, and is delivered first. An empty stream is kept: a missing stream was
-- deleted, flushed or evicted, with all its messages.

local GROUP, RETURNED = 'umbel', '-'
local MAX_IDS = 1000

local function stream_key(lane)
  return root .. ':stream:' .. lane
end

-- Return the run id of the server; nil if the user may not read it.
local function server_run_id()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%w+)') or nil
end

-- Create the missing parts of a lane. The caller has reported the lane as lost before.
local function create_lane(lane)
  local created = redis.pcall('XGROUP', 'CREATE', stream_key(lane), GROUP, '0', 'MKSTREAM')
  if created.err and not string.find(created.err, 'BUSYGROUP', 1, true) then
    redis.call('XGROUP', 'CREATE', stream_key(lane), GROUP, '0', 'MKSTREAM')
  end
  local run = server_run_id()
  if run then redis.call('HSET', root .. ':server_runs', lane, run) end
end

-- Return the ids in lists that are short enough for one command.
local function batches(ids)
  local result = {}
  for first = 1, #ids, MAX_IDS do
    result[#result + 1] = {unpack(ids, first, math.min(first + MAX_IDS - 1, #ids))}
  end
  return result
end

-- Delete messages that are in the job store, even if another receiver has them now.
local function delete_entries(lane, ids)
  for _, some in ipairs(batches(ids)) do
    redis.pcall('XACK', stream_key(lane), GROUP, unpack(some))
    redis.call('XDEL', stream_key(lane), unpack(some))
  end
end

-- Return messages so that any receiver can take them, unless they were accepted. Return whether the lane exists.
local function return_entries(lane, ids)
  for _, some in ipairs(batches(ids)) do
    some[#some + 1] = 'JUSTID'
    if redis.pcall('XCLAIM', stream_key(lane), GROUP, RETURNED, 0, unpack(some)).err then return false end
  end
  notify('m', lane)
  return true
end

-- Return the ids of the first messages that a receiver has in a lane; nil if the lane does not exist.
local function pending_ids(lane, name, limit)
  local ids = {}
  local found = redis.pcall('XPENDING', stream_key(lane), GROUP, '-', '+', limit, name)
  if found.err then return nil end
  for _, one in ipairs(found) do ids[#ids + 1] = one[1] end
  return ids
end

-- Remove a receiver from a lane and return its messages.
local function remove_consumer(lane, name)
  local ids
  repeat
    ids = pending_ids(lane, name, MAX_IDS)
    if not ids or (#ids > 0 and not return_entries(lane, ids)) then return end
  until #ids < MAX_IDS
  redis.pcall('XGROUP', 'DELCONSUMER', stream_key(lane), GROUP, name)
end

-- Remove the receivers of a lane whose key has expired.
local function remove_dead_consumers(lane)
  for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', stream_key(lane), GROUP)) do
    local name = consumer[2]
    if name ~= RETURNED and redis.call('EXISTS', root .. ':receiver:' .. name) == 0 then
      remove_consumer(lane, name)
    end
  end
end
