-- Entries of the coordination store, and what scripts read from them: pauses and operators' limits. Included after
-- keys.lua and jobs.lua; writes entries, entry_values, entry_revisions, entry_leases, leased_sections, revision,
-- section_revisions; for limits and pauses of gates check_now, check_later, rules_to_check.
-- Guarantees: each change gets a higher revision than every change before, and its section gets the same revision;
-- an entry whose lease has lapsed counts for no script; its removal is a change.

local PAUSES, LIMITS, CANCELLATIONS = 'pauses/', 'limits/', 'cancellations/'
local MAX_CAPACITY_DIGITS = 9

-- Return the section of a key, with its slash.
local function section_of(key)
  return string.match(key, '^[^/]*/') or ''
end

local function entry_leases_key(section)
  return root .. ':entry_leases:' .. section
end

-- Return whether the lease of an entry has lapsed.
local function has_lapsed(key)
  local lapse = redis.call('ZSCORE', entry_leases_key(section_of(key)), key)
  return lapse and tonumber(lapse) <= now
end

-- Return the revision of an entry; 0 if it is absent or has lapsed.
local function entry_revision(key)
  local revision = redis.call('HGET', root .. ':entry_revisions', key)
  if not revision or has_lapsed(key) then return 0 end
  return to_number(revision, 0)
end

local function next_revision()
  return redis.call('INCR', root .. ':revision')
end

-- Notify the processes that watch a section. Pauses also concern workers that wait for jobs.
local function notify_section(section)
  notify('e', section)
  if section == PAUSES then notify('c') end
end

-- Record a change in a section.
local function change_section(section, revision)
  redis.call('HSET', root .. ':section_revisions', section, revision)
  notify_section(section)
end

-- Jobs may pass the gates of a rule, since an operator's limit was changed.
local function check_limit(key)
  local rule = string.match(key, '^' .. LIMITS .. '(.+)$')
  if rule then request_rule_checks(rule, '') end
end

-- Remove an entry. Jobs that were set aside because of a pause return with the next claims; the waiting lists of a
-- resumed gate are checked.
local function remove_entry(key)
  redis.call('ZREM', root .. ':entries', key)
  redis.call('HDEL', root .. ':entry_values', key)
  redis.call('HDEL', root .. ':entry_revisions', key)
  redis.call('ZREM', entry_leases_key(section_of(key)), key)
  local gate = string.match(key, '^' .. PAUSES .. 'gate/[^/]*/(.*)$')
  if gate then request_check(gate) end
  check_limit(key)
end

-- Write an entry; with seconds under a lease of that length.
local function write_entry(key, value, seconds, revision)
  local section = section_of(key)
  redis.call('ZADD', root .. ':entries', 0, key)
  redis.call('HSET', root .. ':entry_values', key, value)
  redis.call('HSET', root .. ':entry_revisions', key, revision)
  if seconds then
    redis.call('ZADD', entry_leases_key(section), now + seconds, key)
    redis.call('SADD', root .. ':leased_sections', section)
  else
    redis.call('ZREM', entry_leases_key(section), key)
  end
  check_limit(key)
end

-- Remove lapsed entries of a section, up to a limit. Return how many.
local function sweep_section(section, limit)
  local leases = entry_leases_key(section)
  local lapsed = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, limit)
  if #lapsed == 0 then return 0 end
  for _, key in ipairs(lapsed) do remove_entry(key) end
  if redis.call('EXISTS', leases) == 0 then redis.call('SREM', root .. ':leased_sections', section) end
  change_section(section, next_revision())
  return #lapsed
end

-- Return the capacity that an operator gave a rule; nil if there is none or if it is not a plain number.
local function read_limit(rule)
  local value = redis.call('HGET', root .. ':entry_values', LIMITS .. rule)
  if not value or #value > MAX_CAPACITY_DIGITS or not string.match(value, '^%d+$') then return nil end
  if has_lapsed(LIMITS .. rule) then return nil end
  return tonumber(value)
end

-- Return when the leases of pauses lapse, by key, and when the first of them does that has not lapsed yet.
local function read_pause_leases()
  local leases, first = {}, nil
  local found = redis.call('ZRANGE', entry_leases_key(PAUSES), 0, -1, 'WITHSCORES')
  for at = 1, #found, 2 do
    local lapse = tonumber(found[at + 1])
    leases[found[at]] = lapse
    if lapse > now then first = math.min(first or lapse, lapse) end
  end
  return leases, first
end

-- Return what is paused now: everything, or queues, tasks and gates by name; and when the first of these pauses
-- lapses. Without pauses it costs one command, because every claim calls it.
local function read_pauses()
  local paused = {all = false, queue = {}, task = {}, tasks = false, gate = {}, lapse = nil}
  local keys = redis.call('ZRANGEBYLEX', root .. ':entries', '[' .. PAUSES, '(pauses0')
  if #keys == 0 then return paused end
  local leases
  leases, paused.lapse = read_pause_leases()
  for _, key in ipairs(keys) do
    local scope, name = string.match(key, '^[^/]*/([^/]*)/[^/]*/(.*)$')
    if leases[key] and leases[key] <= now then
      scope = nil
    elseif scope == 'all' then
      paused.all = true
    elseif scope == 'queue' then
      paused.queue[name] = true
    elseif scope == 'task' then
      paused.task[name] = true
      paused.tasks = true
    elseif scope == 'gate' then
      paused.gate[name] = true
    end
  end
  return paused
end
