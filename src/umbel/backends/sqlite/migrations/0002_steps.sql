-- Steps that a job has done. They stay for as long as the job is live or its record is kept.
create table step (
  job text not null check (length(job) = 36),
  namespace text not null,
  number integer not null check (number > 0),
  name text not null check (length(name) between 1 and 255),
  content_type text not null,
  result blob not null,
  started real not null,
  finished real not null,
  primary key (job, namespace, number)
) strict;

-- Whether there are some: almost no job has any.
alter table job add column steps integer not null default 0;

create trigger steps_end_with_record after delete on record
begin
  delete from step
  where job = old.id and namespace = old.namespace
    and not exists (select 1 from job where id = old.id and namespace = old.namespace);
end;
