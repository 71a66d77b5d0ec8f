-- name: live
-- The live route of a key, and whether its worker is registered or its index kept.
select id, idx, closing,
       exists (select 1 from worker w where w.namespace = r.namespace and w.idx = r.idx)
       or exists (select 1 from worker_index s
                  where s.namespace = r.namespace and s.idx = r.idx and s.kept > :now)
from route r where namespace = :namespace and key = :key and released is null

-- name: candidates
-- The workers that can run a task of a queue: indexes with their number of live routes, best first.
select w.idx, (select count(*) from route r
               where r.namespace = w.namespace and r.idx = w.idx and r.released is null) as many
from worker w join worker_index s on s.namespace = w.namespace and s.idx = w.idx
where w.namespace = :namespace and not w.stopping and not s.retiring
  and exists (select 1 from json_each(w.entry, '$.queues') where value = :queue)
  and exists (select 1 from json_each(w.entry, '$.tasks') where value = :task)
group by w.idx order by many, w.idx

-- name: target
-- The index to which the last route of a key was to move; null if none.
select target from route where namespace = :namespace and key = :key order by id desc limit 1

-- name: make
-- Makes a route. Its time is not before the release of the last route of its key, even if this
-- transaction waited longer for the file.
insert into route (namespace, key, idx, made, among)
values (:namespace, :key, :idx,
        max(:now, coalesce((select max(released) from route
                            where namespace = :namespace and key = :key), :now)),
        :among)
returning id

-- name: hold
-- Counts more jobs on a route.
update route set held = held + :many, rested = null where id = :id

-- name: close_lost
-- Closes the routes of workers that are not registered and whose index is not kept.
update route set closing = 2, why = case why when '' then 'its worker is gone' else why end
where namespace = :namespace and released is null and closing < 2
  and not exists (select 1 from worker w where w.namespace = route.namespace and w.idx = route.idx)
  and not exists (select 1 from worker_index s where s.namespace = route.namespace and s.idx = route.idx
                                         and s.kept > :now)

-- name: start_idle_time
-- Starts the idle time of routes without jobs.
update route set rested = :now
where namespace = :namespace and released is null and held = 0 and rested is null

-- name: close_idle
-- Closes routes that were idle for long and for which no job waits.
update route set closing = 1, why = 'idle'
where namespace = :namespace and released is null and not closing and held = 0
  and rested <= :now - :idle
  and not exists (select 1 from job where namespace = :namespace and state = 'waiting'
                                      and gate = 'route:#' || route.key)

-- name: put_back
-- Puts jobs back on the waiting list that are in a worker's inbox by a route that is closing.
update job
set state = 'waiting', queue = json_extract(slots, '$[#-1].home'),
    gate = json_extract(gates, '$[0]'), slots = null
where namespace = :namespace and state in ('queued', 'sent')
  and queue in (select 'worker-' || idx from route
                where namespace = :namespace and released is null and closing)
  and json_extract(slots, '$[#-1].route') in (
    select id from route where namespace = :namespace and released is null and closing)

-- name: finish
-- Releases closing routes on which no job runs, or whose worker is gone.
update route set released = :now
where namespace = :namespace and released is null and closing and (held = 0 or closing = 2)
returning id, key, idx, made, released, why, held, closing, among

-- name: check_waiting_lists
-- Checks the waiting jobs of this key again: they may get a new route.
update waiting_list set next_check = 0 where namespace = :namespace and key = 'route:#' || :key

-- name: close
-- Closes the route of a key.
update route set closing = max(closing, 1), why = :why, target = :target
where namespace = :namespace and key = :key and released is null

-- name: close_all
-- Closes all routes of an index.
update route set closing = max(closing, 1), why = :why
where namespace = :namespace and idx = :idx and released is null
