"""PostgreSQL: few connections to one schema. Wake-ups by LISTEN, or polling behind pgbouncer."""
