-- Sending jobs to the worker that has their key: a gate that leads into that worker's queue. It stands after
-- lanes.lua and routing.lua, before granting.lua; touches job, lane, waiting, line, lines, gates, awake, looks,
-- turn, queues, went, resting, and what lanes.lua and routing.lua do; reads asides, away, absent.
-- Guarantees: who waits for a worker goes into that one's queue, whoever looks, all of a line together; a job
-- that makes sense only where its key has a worker ends only if nobody came before who makes the route.

-- Made only where somebody waits for a worker. Line: how granting.lua deals with a line.
local function sending(now, line)
  local NOW, NEVER = 0, false
  local routes = routing(now)

  -- A job without what is large: state, task, headers, gates, slots.
  local function outline(id)
    local found = read(id, 'task', 'headers', 'gates', 'slots')
    if not found then return nil end
    local job = {found[1]}
    job[TASK], job[HEADERS], job[GATES], job[SLOTS] = found[2], found[3], found[4], found[5]
    return job
  end

  -- Whether a job is to end where its key has no route.
  local function only_if_routed(job)
    local headers = job[HEADERS]
    if not headers or not string.find(headers, '"onlyifrouted"', 1, true) then return false end
    local fine, found = pcall(cjson.decode, headers)
    return fine and type(found) == 'table' and found.onlyifrouted ~= nil
  end

  -- The place of who came first of those that wait for a worker and make the route, wherever it stands, in a
  -- portion of each line, or is put aside.
  local function first_maker(gate)
    local first, keys = nil, {}
    for _, lane in ipairs(redis.call('HKEYS', root .. ':lines:' .. gate)) do
      keys[#keys + 1] = line_of(gate, lane)
    end
    if number(redis.call('HGET', root .. ':absent', gate), 0) > 0 then
      for _, name in ipairs(redis.call('SMEMBERS', root .. ':asides')) do
        keys[#keys + 1] = root .. ':away:' .. name
      end
    end
    for _, key in ipairs(keys) do
      for _, place in ipairs(redis.call('ZRANGE', key, 0, PORTION - 1)) do
        local job = (not first or place < first) and outline(id_of(place))
        if job and job[1] == 'waiting' and gate_at(job[GATES], job[SLOTS]) == gate and not only_if_routed(job) then
          first = place
        end
      end
    end
    return first
  end

  -- These go into their worker's own queue, and hold the route by which they went.
  local function send(jobs, gate, lane, queue, way, index)
    local own, went, slot = 'worker-' .. index, {}, {gate, queue, way, '{}', false}
    local kind, plain = string.match(lane, '^[^:]*'), cmsgpack.pack(slot)
    for _, one in ipairs(jobs) do
      local slots = plain
      if one.job[SLOTS] then
        local held = {unpack(slots_in(one.job[SLOTS]))}
        for part = 1, SLOT do held[#held + 1] = slot[part] end
        slots = cmsgpack.pack(held)
      end
      redis.call('HSET', root .. ':job:' .. one.id, 'state', 'queued', 'queue', own, 'slots', slots)
      drop(line_of(gate, lane), one.place)
      drop(root .. ':waiting:' .. lane, one.place)
      add(root .. ':lane:' .. kind .. ':' .. own, one.score, one.place)
      went[#went + 1], went[#went + 2] = tonumber(string.sub(one.place, 1, 16)), one.id
    end
    write('ZADD', {[root .. ':went:' .. way] = went})
    redis.call('ZREM', root .. ':resting', way)
    know(own)
    tell('r', own)
    return own
  end

  -- Those of a line that are to end, for their key has no route, up to a share; the first that makes one stops
  -- that. Gives the route, how many end, and when to look again.
  local function end_or_make(jobs, gate, lane, queue, share, entered)
    local ended, look, first = 0, NEVER, nil
    for _, one in ipairs(jobs) do
      local task = one.job[TASK] or ''
      if not only_if_routed(one.job) then
        local way, index = routes.make(string.sub(gate, #HERE + 1), queue, task)
        return way, index, ended, look  -- none: until a worker comes
      end
      if first == nil then first = first_maker(gate) or false end
      if first and first < one.place then
        look = now + 1  -- that one makes the route; or it goes elsewhere, and tells nobody
      elseif unwanted[task] or ended >= share then
        look = NOW
      else
        one.job, one.ends = message(one.id), true
        line.pass(one, gate, lane, {rejected = true})
        entered[#entered + 1], ended = one, ended + 1
      end
    end
    return nil, nil, ended, look
  end

  -- Lets some of a line go to the worker that has their key, or who makes no sense without one pass to its
  -- end. How many went, how many of them are to be in their lane, and whether others could if there were time.
  return function(gate, lane, queue, share, paused, entered)
    local way, index, closing, unfinished = routes.live(string.sub(gate, #HERE + 1))
    if closing then
      line.served(gate, lane, unfinished and NOW or NEVER, 0)
      return 0, 0, unfinished
    end
    local jobs, ended, look, rest
    jobs, unfinished = line.line_front(gate, lane, queue, PORTION, nil, paused, outline)
    ended, look, rest = 0, NEVER, {}
    if not way then way, index, ended, look = end_or_make(jobs, gate, lane, queue, share, entered) end
    for _, one in ipairs(way and jobs or {}) do
      if not one.ends then rest[#rest + 1] = one end
    end
    if #rest > 0 then line.sent_to[send(rest, gate, lane, queue, way, index)] = true end
    write_all()
    if #jobs == PORTION and (way or ended > 0) then look = NOW end
    line.served(gate, lane, look, ended + #rest)
    return ended + #rest, ended, unfinished
  end
end
