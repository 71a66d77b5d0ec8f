"""PostgreSQL: few connections to one schema, woken by LISTEN or, behind pgbouncer, by polling."""
