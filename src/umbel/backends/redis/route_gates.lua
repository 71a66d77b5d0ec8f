-- The gate of a route: it sends jobs into the queue of the worker that has their routing key. Included after
-- lanes.lua and routing.lua, before granting.lua; writes job, lane, waiting, waiting_list, waiting_lists, gates,
-- check_now, check_later, turn, queues, routed_jobs, idle_routes, and what lanes.lua and routing.lua write; reads
-- aside_names, aside_waiting, aside_counts.
-- Guarantees: all jobs of a waiting list go to the queue of their worker together, whichever worker checks the
-- list; a job with only_if_routed is rejected only if no job before it makes the route.

-- Called only if jobs wait at the gate of a route. Granter has the functions of granting.lua for waiting lists.
local function new_route_sender(now, granter)
  local CHECK_NOW, NO_CHECK = 0, false
  local routes = open_routes(now)

  -- Return a job without its large fields: state, task, headers, gates, slots.
  local function read_outline(id)
    local found = read_job(id, 'task', 'headers', 'gates', 'slots')
    if not found then return nil end
    local job = {found[1]}
    job[TASK], job[HEADERS], job[GATES], job[SLOTS] = found[2], found[3], found[4], found[5]
    return job
  end

  -- Return whether a job is to be rejected if its key has no route.
  local function is_only_if_routed(job)
    local headers = job[HEADERS]
    if not headers or not string.find(headers, '"onlyifrouted"', 1, true) then return false end
    local ok, found = pcall(cjson.decode, headers)
    return ok and type(found) == 'table' and found.onlyifrouted ~= nil
  end

  -- Return the position of the first waiting job that makes the route, in a portion of each waiting list or among
  -- the jobs that are set aside.
  local function first_route_maker(gate)
    local first, keys = nil, {}
    for _, lane in ipairs(redis.call('HKEYS', root .. ':waiting_lists:' .. gate)) do
      keys[#keys + 1] = waiting_list_key(gate, lane)
    end
    if to_number(redis.call('HGET', root .. ':aside_counts', gate), 0) > 0 then
      for _, name in ipairs(redis.call('SMEMBERS', root .. ':aside_names')) do
        keys[#keys + 1] = root .. ':aside_waiting:' .. name
      end
    end
    for _, key in ipairs(keys) do
      for _, position in ipairs(redis.call('ZRANGE', key, 0, PORTION - 1)) do
        local job = (not first or position < first) and read_outline(id_of(position))
        if job and job[1] == 'waiting' and next_gate(job[GATES], job[SLOTS]) == gate
           and not is_only_if_routed(job) then
          first = position
        end
      end
    end
    return first
  end

  -- Move these jobs into their worker's queue; they hold the route by which they went.
  local function send_to_queue(jobs, gate, lane, queue, route_number, index)
    local worker_queue, members, slot = 'worker-' .. index, {}, {gate, queue, route_number, '{}', false}
    local kind, packed_slot = string.match(lane, '^[^:]*'), cmsgpack.pack(slot)
    for _, candidate in ipairs(jobs) do
      local slots = packed_slot
      if candidate.job[SLOTS] then
        local held = {unpack(decode_slots(candidate.job[SLOTS]))}
        for part = 1, SLOT_PARTS do held[#held + 1] = slot[part] end
        slots = cmsgpack.pack(held)
      end
      redis.call('HSET', root .. ':job:' .. candidate.id, 'state', 'queued', 'queue', worker_queue, 'slots', slots)
      remove_later(waiting_list_key(gate, lane), candidate.position)
      remove_later(root .. ':waiting:' .. lane, candidate.position)
      add_later(root .. ':lane:' .. kind .. ':' .. worker_queue, candidate.score, candidate.position)
      members[#members + 1], members[#members + 2] = tonumber(string.sub(candidate.position, 1, 16)), candidate.id
    end
    write_lists('ZADD', {[root .. ':routed_jobs:' .. route_number] = members})
    redis.call('ZREM', root .. ':idle_routes', route_number)
    register_queue(worker_queue)
    notify('r', worker_queue)
    return worker_queue
  end

  -- Reject jobs with only_if_routed whose key has no route, up to a share; the first other job makes the route and
  -- ends that. Return the route number and index, how many were rejected, and when to check again.
  local function reject_or_make_route(jobs, gate, lane, queue, share, entered)
    local rejected, check_at, first = 0, NO_CHECK, nil
    for _, candidate in ipairs(jobs) do
      local task = candidate.job[TASK] or ''
      if not is_only_if_routed(candidate.job) then
        local route_number, index = routes.make(string.sub(gate, #ROUTE_GATE + 1), queue, task)
        return route_number, index, rejected, check_at  -- no route: until a worker registers
      end
      if first == nil then first = first_route_maker(gate) or false end
      if first and first < candidate.position then
        check_at = now + 1  -- that job makes the route; it may also be moved away, which requests no check
      elseif excluded_tasks[task] or rejected >= share then
        check_at = CHECK_NOW
      else
        candidate.job, candidate.is_rejected = read_delivery(candidate.id), true
        granter.pass_gate(candidate, gate, lane, {rejected = true})
        entered[#entered + 1], rejected = candidate, rejected + 1
      end
    end
    return nil, nil, rejected, check_at
  end

  -- Send jobs of a waiting list to the worker that has their key, or reject those with only_if_routed. Return how many
  -- jobs left the list, how many of them are to enter their lane, and whether the portion was used up before the end.
  return function(gate, lane, queue, share, paused, entered)
    local route_number, index, closing, unfinished = routes.live(string.sub(gate, #ROUTE_GATE + 1))
    if closing then
      granter.end_turn(gate, lane, unfinished and CHECK_NOW or NO_CHECK, 0)
      return 0, 0, unfinished
    end
    local jobs, rejected, check_at, others
    jobs, unfinished = granter.waiting_list_front(gate, lane, queue, PORTION, nil, paused, read_outline)
    rejected, check_at, others = 0, NO_CHECK, {}
    if not route_number then
      route_number, index, rejected, check_at = reject_or_make_route(jobs, gate, lane, queue, share, entered)
    end
    for _, candidate in ipairs(route_number and jobs or {}) do
      if not candidate.is_rejected then others[#others + 1] = candidate end
    end
    if #others > 0 then granter.worker_queues[send_to_queue(others, gate, lane, queue, route_number, index)] = true end
    write_pending()
    if #jobs == PORTION and (route_number or rejected > 0) then check_at = CHECK_NOW end
    granter.end_turn(gate, lane, check_at, rejected + #others)
    return rejected + #others, rejected, unfinished
  end
end
