-- name: live
-- The live route of a key, and whether its worker is enlisted, or its seat kept for it.
select id, idx, closing,
       exists (select 1 from worker w where w.namespace = r.namespace and w.idx = r.idx)
       or exists (select 1 from seat s
                  where s.namespace = r.namespace and s.idx = r.idx and s.kept > :now)
from route r where namespace = :namespace and key = :key and released is null

-- name: candidates
-- Who could have the jobs of a task in a queue: indexes with their live routes, the best first.
select w.idx, (select count(*) from route r
               where r.namespace = w.namespace and r.idx = w.idx and r.released is null) as many
from worker w join seat s on s.namespace = w.namespace and s.idx = w.idx
where w.namespace = :namespace and not w.stopping and not s.retiring
  and exists (select 1 from json_each(w.entry, '$.queues') where value = :queue)
  and exists (select 1 from json_each(w.entry, '$.tasks') where value = :task)
group by w.idx order by many, w.idx

-- name: target
-- Where the last route of a key was to move, if it was.
select target from route where namespace = :namespace and key = :key order by id desc limit 1

-- name: make
-- A route begins: not before the last one of its key has ended, whoever waited longer for the file.
insert into route (namespace, key, idx, made, among)
values (:namespace, :key, :idx,
        max(:now, coalesce((select max(released) from route
                            where namespace = :namespace and key = :key), :now)),
        :among)
returning id

-- name: hold
-- So many more jobs go by a route.
update route set held = held + :many, rested = null where id = :id

-- name: close_lost
-- Routes of workers that are not enlisted, and whose seat is not kept, are to be released.
update route set closing = 2, why = case why when '' then 'its worker is gone' else why end
where namespace = :namespace and released is null and closing < 2
  and not exists (select 1 from worker w where w.namespace = route.namespace and w.idx = route.idx)
  and not exists (select 1 from seat s where s.namespace = route.namespace and s.idx = route.idx
                                         and s.kept > :now)

-- name: rests
-- Nothing goes by these routes, from now on as far as anybody knows.
update route set rested = :now
where namespace = :namespace and released is null and held = 0 and rested is null

-- name: close_idle
-- Routes that nobody has used for long, and for which nobody waits, are to be released.
update route set closing = 1, why = 'idle'
where namespace = :namespace and released is null and not closing and held = 0
  and rested <= :now - :idle
  and not exists (select 1 from job where namespace = :namespace and state = 'waiting'
                                      and line = 'route:#' || route.key)

-- name: put_back
-- Jobs that wait in a worker's queue by routes that are to be released stand in line again.
update job
set state = 'waiting', queue = json_extract(slots, '$[#-1].home'),
    line = json_extract(gates, '$[0]'), slots = null
where namespace = :namespace and state in ('queued', 'sent')
  and queue in (select 'worker-' || idx from route
                where namespace = :namespace and released is null and closing)
  and json_extract(slots, '$[#-1].route') in (
    select id from route where namespace = :namespace and released is null and closing)

-- name: finish
-- Where nothing runs any more, or nobody is left who could run it, a route ends.
update route set released = :now
where namespace = :namespace and released is null and closing and (held = 0 or closing = 2)
returning id, key, idx, made, released, why, held, closing, among

-- name: look
-- Whoever waits for this key may go by a new route.
update line set look = 0 where namespace = :namespace and key = 'route:#' || :key

-- name: close
-- A key's route is to be released.
update route set closing = max(closing, 1), why = :why, target = :target
where namespace = :namespace and key = :key and released is null

-- name: close_all
-- So are all of an index.
update route set closing = max(closing, 1), why = :why
where namespace = :namespace and idx = :idx and released is null
