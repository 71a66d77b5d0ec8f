-- Job records. Keys: see keys.lua; writes job, live, done, keep_until, buried, lane, queues, sequence; reads
-- waiting_list, leases, group, groups.
-- Guarantees: a job is one hash, live or finished, so a reader always sees it exactly once; a buried job is deleted
-- only by its id.

-- name: find
-- {id, fields}: returns the fields of a job with gates, the gate at which it waits, the parts of its slots, and how
-- many jobs wait before it; {} for an unknown job.
local id, fields = unpack(cmsgpack.unpack(ARGV[1]))
local job = read_job(id)
if not job then return {} end
local gate, slots = gate_and_slots(id, job[1])
return {redis.call('HMGET', root .. ':job:' .. id, unpack(fields)), gate, slots, gate and ahead_of(id, gate)}

-- name: list
-- {index, score, after, states, task, queue, worker, before, since, last, id_part, limit, fields}: returns the jobs that
-- match, newest first, of a portion of an index after a place (a score and an id): {score and id of the last job that
-- was read, or 0 and '' at the end, how many were read, {id, score, fields, gate, slots} ...}; empty filters are false.
local index, score, after, states, task, queue, worker, before, since, last, id_part, limit, fields =
  unpack(cmsgpack.unpack(ARGV[1]), 1, 13)
local key, is_live = root .. ':' .. index, index == 'live'
local rank = redis.call('ZREVRANK', key, after)
local from = rank and rank + 1 or score and redis.call('ZCOUNT', key, '(' .. format_number(score), '+inf') or 0
local found = redis.call('ZREVRANGE', key, from, from + PORTION - 1, 'WITHSCORES')
local wanted = states and {}
for _, state in ipairs(states or {}) do wanted[state] = true end
local answer = {0, '', #found / 2}
if #found == 2 * PORTION then answer[1], answer[2] = found[#found], found[#found - 1] end

local function matches(id, place)
  local name = id_part and string.lower(id)
  if id_part and string.sub(name, 1, #id_part) ~= id_part and string.sub(name, -#id_part) ~= id_part then
    return false
  end
  if not rank and score and place == score and id >= after then return false end
  local job = read_job(id, 'task', 'queue', 'worker', 'created')
  if not job then return false end
  local created = to_number(job[5], 0)
  if is_live and (since and created < since or last and created > last) then return false end
  return (not wanted or wanted[job[1]]) and (not task or job[2] == task)
     and (not queue or job[3] == queue) and (not worker or job[4] == worker)
     and (not before or created < before or created > now) and job[1]
end

for at = 1, #found, 2 do
  local id, place = found[at], tonumber(found[at + 1])
  if since and not is_live and place < since then
    answer[1], answer[2] = 0, ''
    break
  end
  local state = matches(id, place)
  if state then
    local all = redis.call('HMGET', root .. ':job:' .. id, unpack(fields))
    answer[#answer + 1] = {id, found[at + 1], all, gate_and_slots(id, state)}
    if #answer - 3 >= limit then break end
  end
end
return answer

-- name: find_finished
-- {id, fields}: returns the fields of a finished job; 0 for a live job, whose end will publish a wake-up; nil for an
-- unknown job.
local id, fields = unpack(cmsgpack.unpack(ARGV[1]))
local job = read_job(id)
if not job then return nil end
if FINAL[job[1]] then return redis.call('HMGET', root .. ':job:' .. id, unpack(fields)) end
redis.call('HSET', root .. ':job:' .. id, 'awaited', 1)
return 0

-- name: record_progress
-- {id, fence, done, of, ...}: stores progress under the current lease; an older fence changes nothing.
local notes = cmsgpack.unpack(ARGV[1])
for at = 1, #notes, 4 do
  local job = read_job(notes[at], 'fence')
  if job and job[1] == 'running' and to_number(job[2], -1) == notes[at + 1] then
    local key = root .. ':job:' .. notes[at]
    redis.call('HSET', key, 'done', notes[at + 2])
    if notes[at + 3] then
      redis.call('HSET', key, 'of', notes[at + 3])
    else
      redis.call('HDEL', key, 'of')
    end
  end
end
return 0

-- name: replay
-- {ids, fields, from_scratch}: queues finished jobs without a result again, with the same id and history and with
-- changed fields; from scratch: without their steps. A job whose join is not complete is blocked. Returns the ids.
local ids, changes, from_scratch = unpack(cmsgpack.unpack(ARGV[1]))
local sequence = redis.call('INCRBY', root .. ':sequence', #ids) - #ids
local replayed = {}
for index, id in ipairs(ids) do
  local job = read_job(id)
  if job and FINAL[job[1]] and job[1] ~= 'succeeded' then
    restart_job(id, job[1], sequence + index, changes, from_scratch)
    replayed[#replayed + 1] = id
  end
end
write_pending()
return replayed

-- name: prune
-- {index, age, keep, limit, skipped}: deletes jobs whose time in an index (done, keep_until) was so many seconds ago or
-- earlier, and the oldest beyond a count, of a portion of the index; buried jobs stay and do not count. Records of a
-- group that has joins are skipped, like the given number before them. Returns {how many were deleted, how many were
-- skipped in this call}.
local index, age, keep, limit, skipped = unpack(cmsgpack.unpack(ARGV[1]))
local key = root .. ':' .. index
allow_when_full()
local beyond = redis.call('ZCARD', key) - keep - skipped  -- so many of the next jobs are beyond the count
local found = redis.call('ZRANGE', key, skipped, skipped + math.min(limit, PORTION) - 1, 'WITHSCORES')
local groups, pruned, kept = {}, 0, 0

local function has_joins(group)
  if groups[group] == nil then groups[group] = redis.call('EXISTS', root .. ':group:' .. group) == 1 end
  return groups[group]
end

for at = 1, #found, 2 do
  local id = found[at]
  if tonumber(found[at + 1]) > now - age and (at + 1) / 2 > beyond then break end
  local group = redis.pcall('HGET', root .. ':job:' .. id, 'group')
  if type(group) == 'string' and has_joins(group) then
    kept = kept + 1
  else
    redis.call('DEL', root .. ':job:' .. id, root .. ':steps:' .. id)
    remove_later(root .. ':done', id)
    remove_later(root .. ':keep_until', id)
    pruned = pruned + 1
  end
end
write_pending()
return {pruned, kept}

-- name: prunable_groups
-- {age, keep, after, limit}: of a portion of the groups that have joins, oldest first and after one of them, returns
-- those whose root ended so many seconds ago or earlier or is beyond a count, and was not buried: {last group that was
-- read, or nothing at the end, group ...}. A group is not younger than the end of its root.
local age, keep, after, limit = unpack(cmsgpack.unpack(ARGV[1]))
local done, groups = root .. ':done', root .. ':groups'
local beyond, last = redis.call('ZCARD', done) - keep, now - age
if beyond > 0 then
  local newest = redis.call('ZRANGE', done, beyond - 1, beyond - 1, 'WITHSCORES')
  last = math.max(last, tonumber(newest[2]))
end

-- Return whether only its joins keep the records of a group from being pruned.
local function is_prunable(group)
  local job = read_job(group, 'task')
  if not job or job[2] ~= '$graph_task' or not FINAL[job[1]] then return false end
  local ended = redis.call('ZSCORE', done, group)
  return ended and (tonumber(ended) <= now - age or redis.call('ZRANK', done, group) < beyond)
end

local rank = redis.call('ZRANK', groups, after)
local from, answer = rank and rank + 1 or 0, {false}
local found = redis.call('ZRANGE', groups, from, from + PORTION - 1, 'WITHSCORES')
for at = 1, #found, 2 do
  if tonumber(found[at + 1]) > last then return answer end
  if is_prunable(found[at]) then answer[#answer + 1] = found[at] end
  if #answer > limit or at + 1 == 2 * PORTION then
    answer[1] = found[at]
    return answer
  end
end
return answer

-- name: tasks
-- {ids}: returns the tasks of those of these jobs that exist: {id, task, id, task ...}.
local answer = {}
for _, id in ipairs(cmsgpack.unpack(ARGV[1])) do
  local job = read_job(id, 'task')
  if job then
    answer[#answer + 1] = id
    answer[#answer + 1] = job[2]
  end
end
return answer

-- name: remove
-- {ids}: deletes these finished jobs, buried ones included. Returns how many.
allow_when_full()
local removed = 0
for _, id in ipairs(cmsgpack.unpack(ARGV[1])) do
  local job = read_job(id)
  if job and FINAL[job[1]] then
    redis.call('DEL', root .. ':job:' .. id, root .. ':steps:' .. id)
    redis.call('ZREM', root .. ':done', id)
    redis.call('ZREM', root .. ':keep_until', id)
    redis.call('ZREM', root .. ':buried', id)
    removed = removed + 1
  end
end
return removed

-- name: runs
-- {owner}: returns its running jobs: {id, task, queue, seconds, id ...}.
local owner = unpack(cmsgpack.unpack(ARGV[1]))
local answer = {}
for _, id in ipairs(redis.call('HKEYS', root .. ':leases:' .. owner)) do
  local job = read_job(id, 'task', 'queue', 'claimed')
  if job and job[1] == 'running' then
    for at, field in ipairs({id, job[2] or '', job[3] or '', format_number(now - to_number(job[4], 0))}) do
      answer[#answer + 1] = field
    end
  end
end
return answer

-- name: count_waiting
-- {from}: counts, in a portion of the live jobs, those that do not run by queue and task. Returns {where to continue or
-- 0, {queue, task, count} ...}.
local from = unpack(cmsgpack.unpack(ARGV[1]))
local counts = {}
local found = redis.call('ZRANGE', root .. ':live', from, from + PORTION - 1)
for _, id in ipairs(found) do
  local job = read_job(id, 'task', 'queue')
  if job and job[1] ~= 'running' and not FINAL[job[1]] then
    local task, queue = job[2] or '', job[3] or ''
    local name = #queue .. ':' .. queue .. task
    counts[name] = counts[name] or {queue, task, 0}
    counts[name][3] = counts[name][3] + 1
  end
end
local answer = {#found == PORTION and from + PORTION or 0}
for _, row in pairs(counts) do answer[#answer + 1] = row end
return answer

-- name: run_times
-- {index, from, since, longer, excluded, worst}: returns how long runs took, for a portion of the jobs finished since
-- then: {where to continue or 0, task, {runs, long, {step, count, ...}, {seconds, id, ...}}, task ...}. Each step is
-- 2% longer than the step before, so that percentiles can be computed without returning every run.
local index, from, since, longer, excluded, worst = unpack(cmsgpack.unpack(ARGV[1]))
local excluded_set, tasks = {}, {}
for _, task in ipairs(excluded) do excluded_set[task] = true end

-- Reduce a list of runs to the longest ones, longest first.
local function keep_longest(runs, limit)
  table.sort(runs, function(one, other)
    if one[1] ~= other[1] then return one[1] > other[1] end
    return one[2] > other[2]
  end)
  for at = #runs, limit + 1, -1 do runs[at] = nil end
end

local function count(task, seconds, id)
  local seen = tasks[task]
  if not seen then
    seen = {runs = 0, long = 0, steps = {}, worst = {}}
    tasks[task] = seen
  end
  local step = math.ceil(math.log(math.max(seconds, 0.000001)) / math.log(1.02))
  seen.runs = seen.runs + 1
  seen.steps[step] = (seen.steps[step] or 0) + 1
  if seconds > longer then
    seen.long = seen.long + 1
    seen.worst[#seen.worst + 1] = {seconds, id}
    if #seen.worst > 20 * worst then keep_longest(seen.worst, worst) end
  end
end
local key = root .. ':' .. index
local found = redis.call('ZRANGEBYSCORE', key, format_number(since), '+inf', 'LIMIT', from, PORTION)
for _, id in ipairs(found) do
  local job = read_job(id, 'task', 'attempts')
  if job and job[3] and not excluded_set[job[2] or ''] then
    for line in string.gmatch(job[3], '[^\n]+') do
      local ok, attempt = pcall(cjson.decode, line)
      if ok and type(attempt) == 'table' and attempt.ended ~= 'lost'
         and type(attempt.started) == 'number' and type(attempt.finished) == 'number' then
        count(job[2], attempt.finished - attempt.started, id)
      end
    end
  end
end
local answer = {#found == PORTION and from + PORTION or 0}
for task, seen in pairs(tasks) do
  keep_longest(seen.worst, worst)
  local steps, longest = {}, {}
  for step, count in pairs(seen.steps) do
    steps[#steps + 1] = step
    steps[#steps + 1] = count
  end
  for _, one in ipairs(seen.worst) do
    longest[#longest + 1] = format_number(one[1])
    longest[#longest + 1] = one[2]
  end
  answer[#answer + 1] = task
  answer[#answer + 1] = {seen.runs, seen.long, steps, longest}
end
return answer
