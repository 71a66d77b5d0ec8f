-- Joins: counting the parts that have ended, and queueing the jobs that wait for a complete join. Included after
-- keys.lua, jobs.lua and entries.lua; writes join, part, blocked_by, blocked, due_joins, job, expiring; for a job that
-- is queued lane, due, waiting, waiting_list, waiting_lists, gates, check_now.
-- Guarantees: each edge is counted once, in the step in which its job ends; a script queues or cancels at most a
-- portion of jobs because of joins, and the joins that have more of them are in due_joins.

local NEVER_SEALED = '$never_sealed'
local releases_left = PORTION  -- how many jobs this script may still queue or cancel because of joins
local opened_joins = nil

-- Return the functions for joins. Called only for jobs that are part of a join or wait for one, because creating these
-- functions takes as long as ending a job.
local function open_joins()
  if opened_joins then return opened_joins end
  local joins = {}
  opened_joins = joins

  -- Return a join; nil if it does not exist.
  function joins.read(join)
    local found = redis.call('HMGET', root .. ':join:' .. join, 'group', 'fire', 'held', 'open', 'failed', 'abandoned')
    if not found[1] then return nil end
    return {fire = found[2], held = found[3], open = to_number(found[4], 0), failed = to_number(found[5], 0),
            abandoned = found[6]}
  end

  function joins.is_complete(found)
    return found.abandoned or (not found.held and found.open <= 0)
  end

  -- Return why the jobs that wait for a complete join are cancelled; nil if they are queued.
  function joins.cancel_reason(found)
    if found.abandoned then return NEVER_SEALED end
    if found.fire == 'success' and found.failed > 0 then return '$not_succeeded' end
    if found.fire == 'failure' and found.failed <= 0 then return '$not_needed' end
    return nil
  end

  function joins.has_blocked_jobs(join)
    return redis.call('EXISTS', root .. ':blocked_by:' .. join) == 1
  end

  -- Return a portion of the jobs that a join blocks, which the caller queues or cancels.
  function joins.take_blocked_jobs(join)
    if releases_left <= 0 then return {} end
    local ids = redis.call('ZRANGE', root .. ':blocked_by:' .. join, 0, releases_left - 1)
    releases_left = releases_left - #ids
    return ids
  end

  -- Queue a blocked job, or schedule it. Its delay and its time to live in seconds begin now.
  local function queue_blocked_job(id)
    local job = read_job(id, 'queue', 'kind', 'priority', 'sequence', 'gates', 'not_before', 'delay', 'expires',
                         'expires_in')
    if not job or job[1] ~= 'blocked' then return end  -- deleted or changed by hand
    local queue, not_before, fields = job[2] or '', to_number(job[7], nil), {}
    if not not_before and job[8] then
      not_before = now + to_number(job[8], 0)
      fields = {'not_before', format_number(not_before)}
    end
    if not job[9] and job[10] then
      local expires = now + to_number(job[10], 0)
      fields[#fields + 1], fields[#fields + 2] = 'expires', format_number(expires)
      add_later(root .. ':expiring', expires, id)
    end
    remove_later(root .. ':blocked:' .. queue, id)
    local size = #fields
    if not_before and not_before > now then
      fields[size + 1], fields[size + 2] = 'state', 'scheduled'
      schedule(id, queue, not_before)
    else
      fields[size + 1], fields[size + 2] = enqueue_or_wait(id, queue, job[3], job[4], job[5], job[6])
    end
    redis.call('HSET', root .. ':job:' .. id, unpack(fields))
  end

  -- Queue a portion of the jobs that wait for a join.
  function joins.queue_jobs(join)
    local ids = joins.take_blocked_jobs(join)
    for _, id in ipairs(ids) do queue_blocked_job(id) end
    write_lists('ZREM', {[root .. ':blocked_by:' .. join] = ids})
  end

  -- Remember a complete join of which not all jobs were queued or cancelled.
  function joins.remember_due(join)
    if joins.has_blocked_jobs(join) then redis.call('ZADD', root .. ':due_joins', now, join) end
  end

  -- Queue jobs that wait for a join, if it is complete and if they are to run; advance does the rest.
  function joins.complete(join, found)
    if not joins.is_complete(found) or not joins.has_blocked_jobs(join) then return end
    if not joins.cancel_reason(found) then joins.queue_jobs(join) end
    joins.remember_due(join)
  end

  -- Count that one part of a join has ended.
  function joins.count(join, state)
    local found, key = joins.read(join), root .. ':join:' .. join
    if not found then return end
    found.open = redis.call('HINCRBY', key, 'open', -1)
    if state ~= 'succeeded' then found.failed = redis.call('HINCRBY', key, 'failed', 1) end
    joins.complete(join, found)
  end

  return joins
end

-- Return whether jobs have to wait for a join: it exists and is not complete.
local function is_blocking(join)
  local found = open_joins().read(join)
  return found ~= nil and not open_joins().is_complete(found)
end

-- Return the name of an edge in part:<id> and, with a job's id instead of the join, in parts:<join>.
local function edge_name(position, name)
  return string.format('%.0f', position) .. ':' .. name
end

-- Return the position, and the join or job, in the name of an edge.
local function split_edge(name)
  local position, rest = string.match(name, '^(-?%d+):(.*)$')
  return tonumber(position or 0), rest or ''
end

-- Count the end of a job in the joins of which it is a part.
local function count_end(id, state)
  local key = root .. ':part:' .. id
  local edges = redis.call('HGETALL', key)
  for at = 1, #edges, 2 do
    if edges[at + 1] == '' then
      redis.call('HSET', key, edges[at], state)
      local _, join = split_edge(edges[at])
      open_joins().count(join, state)
    end
  end
end
