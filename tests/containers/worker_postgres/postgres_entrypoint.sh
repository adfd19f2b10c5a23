#!/bin/sh
# What the official postgres image does with these variables, as far as compose.yaml uses it; with Debian's PostgreSQL 15.
set -eu
data=/var/lib/postgresql/data
if [ ! -s "$data/PG_VERSION" ]; then
    initdb --pgdata="$data" --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" --auth-host=scram-sha-256 \
        --auth-local=trust --encoding=UTF8 --locale=C.UTF-8
    echo "host all all all scram-sha-256" >>"$data/pg_hba.conf"
    echo "CREATE DATABASE \"$POSTGRES_DB\"" | postgres --single -D "$data" postgres
fi
exec postgres -D "$data" -c listen_addresses='*'
