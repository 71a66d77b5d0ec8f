-- name: routes
-- Routes by key or index, newest first.
select id, key, idx, date_part('epoch', made), date_part('epoch', released), why, held, closing,
       among::text
from $schema.route
where namespace = %(namespace)s and (%(key)s::text is null or key = %(key)s)
  and (%(idx)s::integer is null or idx = %(idx)s) and (not %(live)s::boolean or released is null)
order by id desc limit %(limit)s

-- name: fold
-- Applies the rows of gate_event: freed slots are free.
select $schema.apply_gate_events(%(namespace)s)

-- name: close
-- Closes the route of a key and returns its last route.
select id, key, idx, date_part('epoch', made), date_part('epoch', released), why, held, closing,
       among::text
from $schema.close_route(%(namespace)s, %(key)s, %(why)s, %(target)s)

-- name: retire
-- Sets whether an index gets new routes. Returns the number of its live routes.
select $schema.retire(%(namespace)s, %(idx)s, %(retiring)s)

-- name: worker_indexes
-- Indexes that a worker has, that are kept, or that have live routes.
select * from (
  select idx, name, $schema.has_worker(namespace, idx) as alive, retiring,
         (select count(*) from $schema.route r
          where r.namespace = s.namespace and r.idx = s.idx and r.released is null) as many
  from $schema.worker_index s where namespace = %(namespace)s
) f where alive or many > 0 order by idx

-- name: sweep
-- Releases all routes that can be released now, and returns them.
select id, key, idx, date_part('epoch', made), date_part('epoch', released), why, held, closing,
       among::text
from $schema.settle_routes(%(namespace)s, %(idle)s)

-- name: any
-- Whether there is a live route. Without one, the gates' lock is not taken.
select exists (select 1 from $schema.route where namespace = %(namespace)s and released is null)

-- name: forget
-- Deletes released routes except for the newest.
delete from $schema.route
where namespace = %(namespace)s and released is not null
  and id <= (select max(id) from $schema.route) - %(keep)s
