-- Messages between processes while another store keeps the books. Keys: see streams.lua.
-- Guarantees: a message is in its stream until it is accepted; it is with one receiver at a time, for
-- as long as that one lives; nobody takes one from a receiver that shows a sign of life.

-- name: send
-- {make, rows}: adds all messages; a row: lane, field, value, field, value ... Gives the lanes that are
-- missing: then nothing was added. They are made when asked for.
local wanted, rows = unpack(cmsgpack.unpack(ARGV[1]))
for _, lane in ipairs(wanted) do make(lane) end
local missing, seen = {}, {}
for _, row in ipairs(rows) do
  local lane = row[1]
  if not seen[lane] then
    seen[lane] = true
    if redis.call('EXISTS', stream(lane)) == 0 then missing[#missing + 1] = lane end
  end
end
if #missing > 0 then return missing end
for _, row in ipairs(rows) do
  redis.call('XADD', stream(row[1]), '*', unpack(row, 2))
end
for lane in pairs(seen) do tell('m', lane) end
return missing

-- name: receive
-- {me, life, former, lanes, make, accepted, returned, look, room}: one visit of a receiver. It shows its
-- sign of life, for so many milliseconds; gives up its former names in all of its lanes; has lanes made;
-- says what was accepted and what goes back, by lane; and takes as much of each lane as it has room for.
-- With look it also buries the dead there, and sees whether the server has had another start. Gives
-- {unsound, lane, id, fields, lane, id, fields ...}: unsound lanes are missing, or may have lost something.
local me, life, former, lanes, wanted, accepted, returned, look, room =
  unpack(cmsgpack.unpack(ARGV[1]))
even_if_full()
redis.call('SET', root .. ':receiver:' .. me, 1, 'PX', life)
for _, lane in ipairs(wanted) do make(lane) end
for lane, ids in pairs(accepted) do forget(lane, ids) end
for lane, ids in pairs(returned) do give_back(lane, ids) end
for _, name in ipairs(former) do
  for _, lane in ipairs(lanes) do bury(lane, name) end
  redis.call('DEL', root .. ':receiver:' .. name)
end

local unsound, answer = {}, {}
local function note(lane, entries)
  for _, entry in ipairs(entries) do
    answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = lane, entry[1], entry[2]
  end
end

-- What was given back and is there still; what somebody deleted meanwhile is passed over.
local function take_returned(lane, ids)
  local key, entries = stream(lane), {}
  for _, id in ipairs(ids) do
    local entry = redis.call('XCLAIM', key, GROUP, me, 0, id)[1]
    if entry and entry[2] then
      entries[#entries + 1] = entry
    else
      redis.call('XACK', key, GROUP, id)
    end
  end
  note(lane, entries)
  return #entries
end

local run = look and this_run()
for at = 1, #room, 2 do
  local lane, many = room[at], room[at + 1]
  local key = stream(lane)
  local back = pending(lane, BACK, many)
  if not back or (run and redis.call('HGET', root .. ':lives', lane) ~= run) then
    unsound[#unsound + 1] = lane
  end
  if back then
    if look then
      bury_the_dead(lane)
      back = pending(lane, BACK, many)
    end
    local left = many - take_returned(lane, back)
    if left > 0 then
      local new = redis.call('XREADGROUP', 'GROUP', GROUP, me, 'COUNT', left, 'STREAMS', key, '>')
      if new then note(lane, new[1][2]) end
    end
  end
end
return {unsound, answer}

-- name: leave
-- {names, lanes, accepted}: a receiver closes, under all names it had: what it has goes back.
local names, lanes, accepted = unpack(cmsgpack.unpack(ARGV[1]))
even_if_full()
for lane, ids in pairs(accepted) do forget(lane, ids) end
for _, name in ipairs(names) do
  for _, lane in ipairs(lanes) do bury(lane, name) end
  redis.call('DEL', root .. ':receiver:' .. name)
end
return 0

-- name: drop
-- {lanes}: what waits there is gone. What is with a receiver is accepted or given back as ever.
even_if_full()
for _, lane in ipairs(unpack(cmsgpack.unpack(ARGV[1]))) do
  redis.call('XTRIM', stream(lane), 'MAXLEN', 0)
  redis.pcall('XGROUP', 'DELCONSUMER', stream(lane), GROUP, BACK)
end
return 0

-- name: reply
-- {documents}: added to the list that the root names here, and kept for an hour. A key of another kind
-- is nobody's list, and left alone.
local kind = redis.call('TYPE', root).ok
if kind == 'none' or kind == 'list' then
  redis.call('RPUSH', root, unpack(unpack(cmsgpack.unpack(ARGV[1]))))
  redis.call('EXPIRE', root, 3600)
end
return 0
