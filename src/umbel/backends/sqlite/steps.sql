-- name: lease
-- Whether this very lease is held; and whether the job has steps already, and no blame and no lapses. An owner is
-- a worker of one namespace, which is the job's.
select steps and blame = 0 and lapses = 0, namespace from job
where id = :id and owner = :owner and fence = :fence

-- name: gets_on
-- What the job leaves behind is to be looked for; deaths and lapses so far are not its fault.
update job set steps = 1, blame = 0, lapses = 0 where id = :id and namespace = :namespace

-- name: keep
-- A step, if its place is free.
insert into step (job, namespace, number, name, content_type, result, started, finished)
values (:id, :namespace, :number, :name, :content_type, :result, :started, :finished) on conflict do nothing

-- name: steps
-- What a job of this namespace has done, in order.
select number, name, content_type, result, started, finished from step
where job = :id and namespace = :namespace
order by number
