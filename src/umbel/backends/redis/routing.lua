-- Functions for routes; shared by the scripts of routes, the registry and claims. Included after keys.lua and
-- jobs.lua; writes route, routes, live_routes, routes_to, routed_jobs, closing, idle_routes, released_routes, moves,
-- incarnations; for jobs that return to their waiting list all that a settlement writes; reads indexes, index,
-- worker.
-- Guarantees: a key has at most one live route; jobs that wait in a worker's queue by a route return to their
-- waiting list before the route is released; a call returns at most a portion of jobs.

local ROUTE_GATE = 'route:#'  -- the gate of a route is named by this and the routing key
local MAX_CANDIDATES = 100

-- Called only if there is something to route: see new_granter in granting.lua.
local function open_routes(now)
  local budget, released = PORTION, {}
  local able_workers, counts = {}, {}  -- indexes that can run the jobs of a task in a queue; live routes of each index

  -- Return the gate at which jobs with this key wait for their worker.
  local function gate_of_key(key)
    return ROUTE_GATE .. key
  end

  -- Return the name of a worker that is registered with this index; with a name, only a different one. Forget
  -- incarnations that are gone.
  local function registered_name(index, name)
    local key = root .. ':incarnations:' .. index
    for _, incarnation in ipairs(redis.call('SMEMBERS', key)) do
      local other_name = redis.pcall('HGET', root .. ':worker:' .. incarnation, 'name')
      if type(other_name) ~= 'string' then
        redis.call('SREM', key, incarnation)
      elseif other_name ~= name then
        return other_name
      end
    end
    return nil
  end

  -- Return whether an index is in use: by a registered worker, or kept for one that has left recently.
  local function is_taken(index)
    if registered_name(index) then return true end
    return to_number(redis.call('HGET', root .. ':index:' .. index, 'kept_until'), 0) > now
  end

  local function route_key(route_number)
    return root .. ':route:' .. route_number
  end

  -- Return a job from its worker's queue to its first gate. Return false if it runs. A job that was deleted or
  -- changed by hand no longer counts.
  local function return_job(id, route_number)
    local job = read_job(id, 'queue', 'kind', 'priority', 'sequence', 'aside', 'gates', 'slots')
    local slots = job and job[8] and decode_slots(job[8]) or {}
    if slots[#slots - 2] ~= route_number then
      remove_later(root .. ':routed_jobs:' .. route_number, id)
      return true
    elseif job[1] ~= 'queued' and job[1] ~= 'sent' then
      return false
    end
    remove_from_index(id, job[1], job[2] or '', job[3], job[5], job[6])
    local key, original_queue = root .. ':job:' .. id, free_slots(id, job[8])
    redis.call('HDEL', key, 'slots', 'aside')
    register_queue(original_queue)
    redis.call('HSET', key, 'queue', original_queue,
               enqueue_or_wait(id, original_queue, job[3], job[4], job[5], job[7]))
    return true
  end

  -- Return a portion of the jobs of a route to their first gate. Return whether all of them are done. Running jobs
  -- are skipped: there are no more of them than one worker can run.
  local function return_jobs(route_number)
    local routed_jobs, at = root .. ':routed_jobs:' .. route_number, 0
    while budget > 0 do
      local some = redis.call('ZRANGE', routed_jobs, at, at + budget - 1)
      if #some == 0 then return true end
      for _, id in ipairs(some) do
        if return_job(id, tonumber(route_number)) then budget = budget - 1 else at = at + 1 end
      end
      write_pending()
    end
    return redis.call('ZCARD', routed_jobs) <= at
  end

  -- Mark a route as released and remove it from the indexes of live routes.
  local function release_route(route_number, key, index)
    redis.call('HSET', route_key(route_number), 'released', now)
    if redis.call('HGET', root .. ':live_routes', key) == tostring(route_number) then
      redis.call('HDEL', root .. ':live_routes', key)
    end
    redis.call('ZREM', root .. ':closing', route_number)
    redis.call('ZREM', root .. ':idle_routes', route_number)
    redis.call('ZREM', root .. ':routes_to:' .. index, route_number)
    redis.call('ZADD', root .. ':released_routes', now, route_number)
    counts[to_number(index, -1)] = nil
    released[#released + 1] = route_number
    request_check(gate_of_key(key))
  end

  -- Release a closing route if that is possible now. Return whether all that can be done now is done.
  local function try_release(route_number)
    local route = redis.call('HMGET', route_key(route_number), 'key', 'index', 'closing', 'released')
    if not route[1] or route[4] then
      redis.call('ZREM', root .. ':closing', route_number)
      return true
    end
    if not return_jobs(route_number) then return false end
    if route[3] == '2' or redis.call('EXISTS', root .. ':routed_jobs:' .. route_number) == 0 then
      release_route(route_number, route[1], route[2] or '')
    end
    return true
  end

  -- Close a route, so that it is released: how = 1, when no job runs by it any more; 2, at once, because its worker
  -- is gone.
  local function close_route(route_number, how, why, ...)
    local closing = math.max(to_number(redis.call('HGET', route_key(route_number), 'closing'), 0), how)
    redis.call('HSET', route_key(route_number), 'closing', closing, 'why', why, ...)
    redis.call('ZADD', root .. ':closing', route_number, route_number)
    redis.call('ZREM', root .. ':idle_routes', route_number)
    return try_release(route_number)
  end

  -- Close a route whose worker is gone.
  local function close_lost_route(route_number)
    local why = redis.call('HGET', route_key(route_number), 'why')
    return close_route(route_number, 2, (why or '') ~= '' and why or 'its worker is gone')
  end

  -- Return the number and the index of the live route of a key. If there is none, return whether the key has a
  -- closing route, and whether its jobs take another call to return.
  local function live_route(key)
    local route_number = redis.call('HGET', root .. ':live_routes', key)
    local route = route_number and redis.call('HMGET', route_key(route_number), 'index', 'closing', 'key')
    if route_number and not route[3] then  -- deleted by hand
      redis.call('HDEL', root .. ':live_routes', key)
      route_number = false
    end
    if not route_number then return nil, nil, false, false end
    local is_index_taken, done = is_taken(route[1] or ''), true
    if is_index_taken and not route[2] then return tonumber(route_number), route[1] end
    if is_index_taken then done = try_release(route_number) else done = close_lost_route(route_number) end
    return nil, nil, redis.call('HEXISTS', root .. ':live_routes', key) == 1, not done
  end

  -- Return the indexes of the workers that could run the jobs of a task in a queue.
  local function eligible_indexes(queue, task)
    local seen, found = {}, {}
    for _, incarnation in ipairs(redis.call('SMEMBERS', root .. ':workers')) do
      local worker = redis.pcall('HMGET', root .. ':worker:' .. incarnation, 'index', 'stopping',
                                 'serves:' .. queue, 'knows:' .. task)
      local index = not worker.err and tonumber(worker[1] or nil)
      if index and worker[2] ~= '1' and worker[3] and worker[4] and not seen[index] then
        seen[index] = true
        if redis.call('HGET', root .. ':index:' .. index, 'retiring') ~= '1' then
          found[#found + 1] = index
        end
      end
    end
    return found
  end

  -- Return these indexes with their number of live routes, the best one first.
  local function candidates(queue, task)
    local name, found = #queue .. ':' .. queue .. ':' .. task, {}
    able_workers[name] = able_workers[name] or eligible_indexes(queue, task)
    for rank, index in ipairs(able_workers[name]) do
      counts[index] = counts[index] or redis.call('ZCARD', root .. ':routes_to:' .. index)
      found[rank] = {index, counts[index]}
    end
    table.sort(found, function(one, other)
      return one[2] < other[2] or (one[2] == other[2] and one[1] < other[1])
    end)
    return found
  end

  -- Return the candidate to which a key is to move, if there is one, and forget the move.
  local function take_move_target(key, found)
    local before = redis.call('HGET', root .. ':moves', key)
    local index = before and tonumber(redis.call('HGET', route_key(before), 'target') or nil)
    redis.call('HDEL', root .. ':moves', key)
    for _, one in ipairs(found) do
      if one[1] == index then return one end
    end
    return nil
  end

  -- Make a route to the candidate with the fewest routes, then the lowest index. Return its number and index; nil if
  -- there is no candidate. The list of candidates is stored up to a maximum, because there is one for each key.
  local function make_route(key, queue, task)
    local found = candidates(queue, task)
    if #found == 0 then return nil end
    local best = take_move_target(key, found) or found[1]
    local route_number, shown = redis.call('INCR', root .. ':route_sequence'), {}
    for rank = 1, math.min(#found, MAX_CANDIDATES) do
      shown[rank] = '[' .. found[rank][1] .. ',' .. found[rank][2] .. ']'
    end
    -- A route does not begin before others have ended, even if the server's clock was set back.
    local last = redis.call('ZREVRANGE', root .. ':released_routes', 0, 0, 'WITHSCORES')[2]
    redis.call('HSET', route_key(route_number), 'key', key, 'index', best[1], 'made',
               math.max(now, to_number(last, 0)), 'among', '[' .. table.concat(shown, ',') .. ']')
    redis.call('ZADD', root .. ':routes', route_number, route_number)
    redis.call('ZADD', root .. ':routes_to:' .. best[1], route_number, route_number)
    counts[best[1]] = best[2] + 1
    redis.call('HSET', root .. ':live_routes', key, route_number)
    request_check(gate_of_key(key))  -- for jobs of other queues and kinds
    return route_number, best[1]
  end

  return {
    registered_name = registered_name, is_taken = is_taken, live = live_route, make = make_route, close = close_route,
    close_lost = close_lost_route, try_release = try_release, released = released, gate_of_key = gate_of_key,
  }
end
