-- Publications: jobs, and how they wait for each other. Shared by the scripts of joins and settlements. Included after
-- inserting.lua; writes join, parts, part, waits, blocked, blocked_by, group, groups, held_joins, and all that a publish and
-- counting.lua write.
-- Guarantees: find_error changes nothing, and add cannot fail if it found nothing in the same script; an edge from a
-- job that has ended counts at once.

-- Return the functions for publications. A publication: {joins, rows, edges, waits}; joins {id, group, fire, held, id
-- ...}, rows as for publish, edges {job, join, position, job ...}, waits {job, join, job ...}. Called only if there is
-- one, because creating these functions takes as long as settling a job.
local function open_publications()
  local joins = open_joins()

  local function job_key(id) return root .. ':job:' .. id end
  local function exists(id) return redis.call('EXISTS', job_key(id)) == 1 end

  -- Return whether a publication was added before.
  local function is_known(publication)
    local first = publication[2][1]
    return first ~= nil and exists(first[1])
  end

  -- Return the ids of a publication's own joins and jobs, as sets.
  local function own_names(publication)
    local own_joins, own_jobs = {}, {}
    for at = 1, #publication[1], 4 do own_joins[publication[1][at]] = true end
    for _, row in ipairs(publication[2]) do own_jobs[row[1]] = true end
    return own_joins, own_jobs
  end

  -- Return whether parts and waiting jobs may be added to a join: it is new, or is held.
  local function is_open(join, own_joins)
    local found = joins.read(join)
    if not found then return own_joins[join] == true end
    return found.held or (own_joins[join] and not joins.is_complete(found))
  end

  -- Return whether a position of a join is free, or is that of this job.
  local function is_free(job, join, position)
    local taken = redis.call('ZRANGEBYSCORE', root .. ':parts:' .. join, position, position)[1]
    return not taken or taken == edge_name(position, job)
  end

  -- Return what is wrong with a publication: {'job', id}, {'join', id} or {'position', join}; nil if nothing is.
  local function find_error(publication)
    if is_known(publication) then return nil end
    local own_joins, own_jobs = own_names(publication)
    local _, _, edges, waits = unpack(publication)
    local checked = {}
    local function find_join_error(join)
      if checked[join] == nil then checked[join] = is_open(join, own_joins) or false end
      return not checked[join] and {'join', join} or nil
    end
    for at = 1, #edges, 3 do
      local job, join, position = edges[at], edges[at + 1], edges[at + 2]
      local problem = find_join_error(join)
      if problem then return problem end
      if not own_jobs[job] and not exists(job) then return {'job', job} end
      if not is_free(job, join, position) then return {'position', join} end
    end
    for at = 1, #waits, 2 do
      local problem = find_join_error(waits[at + 1])
      if problem then return problem end
    end
    return nil
  end

  -- Add joins. A join that exists is not changed.
  local function add_joins(rows)
    for at = 1, #rows, 4 do
      local id, group, fire, held = unpack(rows, at, at + 3)
      local key = root .. ':join:' .. id
      if redis.call('EXISTS', key) == 0 then
        redis.call('HSET', key, 'group', group, 'fire', fire, 'open', 0, 'failed', 0)
        redis.call('ZADD', root .. ':group:' .. group, 0, id)
        redis.call('ZADD', root .. ':groups', 'NX', format_number(now), group)
        if held then
          redis.call('HSET', key, 'held', format_number(now))
          redis.call('ZADD', root .. ':held_joins', now, id)
        end
      end
    end
  end

  -- Add jobs, some of which wait for a join. Return the indexes, counted from 1, of those that existed before.
  local function add_jobs(rows, waits)
    local existing, join_of = {}, {}
    for at = 1, #waits, 2 do join_of[waits[at]] = waits[at + 1] end
    local sequence = redis.call('INCRBY', root .. ':sequence', #rows) - #rows
    for index, row in ipairs(rows) do
      local join = join_of[row[1]]
      if not insert_or_cancel(row, sequence + index, now, join) then
        existing[#existing + 1] = index
      elseif join then
        add_later(root .. ':waits:' .. join, sequence + index, row[1])
      end
    end
    return existing
  end

  -- Make a job the part of a join at a position. Return its state if it has ended, so that it counts at once.
  local function add_part(job, join, position)
    local found = read_job(job)
    local state = found and found[1] or 'cancelled'  -- if it was deleted by hand
    local final = FINAL[state] and state or nil
    add_later(root .. ':parts:' .. join, position, edge_name(position, job))
    redis.call('HSET', root .. ':part:' .. job, edge_name(position, join), final or '')
    if found then redis.call('HSET', job_key(job), 'part', 1) end
    return final
  end

  -- Add edges. An edge that exists is not changed.
  local function add_edges(edges)
    local open, failed = {}, {}
    for at = 1, #edges, 3 do
      local job, join, position = edges[at], edges[at + 1], edges[at + 2]
      if redis.call('HEXISTS', root .. ':part:' .. job, edge_name(position, join)) == 0 then
        local final = add_part(job, join, position)
        if not final then
          open[join] = (open[join] or 0) + 1
        elseif final ~= 'succeeded' then
          failed[join] = (failed[join] or 0) + 1
        end
      end
    end
    for join, count in pairs(open) do redis.call('HINCRBY', root .. ':join:' .. join, 'open', count) end
    for join, count in pairs(failed) do redis.call('HINCRBY', root .. ':join:' .. join, 'failed', count) end
  end

  -- Add a publication in which find_error found nothing. Return the indexes, counted from 1, of the jobs that existed
  -- before: all of them, if it was added before.
  local function add(publication)
    local new_joins, rows, edges, waits = unpack(publication)
    local existing = {}
    if is_known(publication) then
      for index in ipairs(rows) do existing[index] = index end
      return existing
    end
    add_joins(new_joins)
    if #rows > 0 then existing = add_jobs(rows, waits) end
    add_edges(edges)
    write_pending()
    for at = 1, #new_joins, 4 do joins.complete(new_joins[at], joins.read(new_joins[at])) end
    return existing
  end

  -- Remove a job from the joins that have not counted it. Return its positions: {position, join, position ...}.
  local function take_places(job)
    local edges, places = redis.call('HGETALL', root .. ':part:' .. job), {}
    for at = 1, #edges, 2 do
      if edges[at + 1] == '' then
        local position, join = split_edge(edges[at])
        redis.call('HDEL', root .. ':part:' .. job, edges[at])
        redis.call('ZREM', root .. ':parts:' .. join, edge_name(position, job))
        places[#places + 1], places[#places + 2] = position, join
      end
    end
    return places
  end

  -- Add a publication, of which one job takes the place of a running job in the joins of which that job is a part.
  local function grow(job, publication, place)
    local places = take_places(job)
    add(publication)
    for at = 1, #places, 2 do
      local final = add_part(place, places[at + 1], places[at])
      if final then joins.count(places[at + 1], final) end
    end
  end

  return {find_error = find_error, add = add, grow = grow}
end
