# Keeps one private cluster of Postgres: sh -c keeper.sh keeper BIN DIR [USER]
#
# It does what it is told on its standard input, one line at a time, and answers each line with
# one. The input ends with the process that holds the other end, however that process ends: then
# the cluster is stopped and its directory deleted.
set -u
bin=$1 dir=$2 user=${3:-}
data=$dir/data log=$dir/keeper.log

# As the user of the cluster, where the tests run as root: Postgres refuses to be root.
run() {
    if [ -z "$user" ]; then
        "$@"
    elif command -v runuser >/dev/null 2>&1; then
        runuser -u "$user" -- "$@"
    else
        su "$user" -s /bin/sh -c '"$0" "$@"' -- "$@"
    fi </dev/null >>"$log" 2>&1
}

# The clock and the order of names mustn't depend on the machine, and a name's order must not be
# that of its bytes by accident: ICU's English, where this Postgres knows it.
create() {
    locale="--locale=C.UTF-8"
    if "$bin/initdb" --help | grep -q -e --icu-locale; then
        locale="$locale --locale-provider=icu --icu-locale=en-US"
    fi
    # shellcheck disable=SC2086
    run "$bin/initdb" -D "$data" -U postgres -E UTF8 $locale -A trust -N &&
        echo "include '$dir/cluster.conf'" >>"$data/postgresql.conf"
}

ctl() { run "$bin/pg_ctl" -D "$data" -w -t 60 "$@"; }

cd /
while read -r command argument; do
    case $command in
    create) create ;;
    start) ctl -l "$dir/server.log" start ;;
    stop) ctl -m "$argument" stop ;;
    standby) run touch "$data/standby.signal" ;;
    promote) ctl promote ;;
    *) false ;;
    esac && echo ok || echo failed
done
ctl -m immediate stop
rm -rf "$dir"
