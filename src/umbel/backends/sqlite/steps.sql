-- name: lease
-- Whether the lease is held: whether the job has steps and neither blame nor lapses, and its
-- namespace. An owner is a worker of one namespace, so the lease needs none.
select steps and blame = 0 and lapses = 0, namespace from job
where id = :id and owner = :owner and fence = :fence

-- name: mark_job
-- Marks that the job has steps. Earlier deaths and lapses are not its fault: it makes progress.
update job set steps = 1, blame = 0, lapses = 0 where id = :id and namespace = :namespace

-- name: keep
-- Adds a step unless there is one of its number.
insert into step (job, namespace, number, name, content_type, result, started, finished)
values (:id, :namespace, :number, :name, :content_type, :result, :started, :finished) on conflict do nothing

-- name: steps
-- The steps of a job, in order.
select number, name, content_type, result, started, finished from step
where job = :id and namespace = :namespace
order by number
