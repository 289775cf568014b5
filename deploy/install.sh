#!/bin/sh
# Installs what the project needs to run and to be tested, if it is missing:
#
#   deploy/install.sh [postgres] [redis] [pgbouncer] [cc] [prometheus] [alertmanager] [haproxy] [nginx] [curl] [systemd] [chromium] [node]        without arguments: all of them
#
# postgres:   the server programs, 15 or later (`listedge dev`, tests)
# redis:      redis-server or valkey-server (more than one node, tests)
# pgbouncer:  tests of reading through a connection pooler
# cc:         a C compiler, which Go's race detector needs on Linux (tests)
# prometheus: prometheus and promtool (tests of rules and alerts)
# alertmanager: with amtool (tests of which alerts are inhibited)
# haproxy:    tests of replacing nodes behind it
# nginx:      tests of its lines in docs/LOAD_BALANCER.md
# curl:       tests of the runbook's commands
# systemd:    systemd-analyze, on Linux (tests of the unit)
# chromium:   Chromium or Chrome (tests of the status page and of /docs)
# node:       Node.js and npm (tests of clients that are generated from /openapi.json)
#
# Only if named, for `make bench`: wrk, which makes the load, and lua (that of nginx) and varnish, to compare with.
#
# It is not interactive, starts no service and creates no database cluster: `listedge dev` and the tests run
# private servers.
# INSTALL_TEST_ROOT is put before every absolute path; the script's own test uses it.
set -eu

root=${INSTALL_TEST_ROOT:-}
log=
made=

say() { printf 'install: %s\n' "$*"; }
fail() {
	printf 'install: %s\n' "$*" >&2
	exit 1
}

# server_in DIR: succeeds if the Postgres in DIR can be used.
server_in() {
	[ -x "$1/initdb" ] && [ -x "$1/postgres" ] || return 1
	major=$("$1/postgres" --version 2>/dev/null) || return 1 # postgres (PostgreSQL) 16.3 (Debian 16.3-1)
	major=${major#*) }
	major=${major%%[!0-9]*}
	[ "${major:-0}" -ge 15 ]
}

# The places are those in which the program itself looks (package sandbox).
have_postgres() {
	on_path=$(command -v initdb) || on_path=
	for dir in "${on_path%/*}" \
		"$root"/usr/lib/postgresql/*/bin "$root"/usr/pgsql-*/bin \
		"$root"/opt/homebrew/opt/postgresql@*/bin "$root"/opt/homebrew/bin \
		"$root"/usr/local/opt/postgresql@*/bin "$root"/usr/local/bin \
		"$root"/Applications/Postgres.app/Contents/Versions/*/bin; do
		server_in "$dir" && return 0
	done
	return 1
}

# program NAME: it is on the PATH, or where systems put servers and Homebrew puts everything.
program() {
	command -v "$1" >/dev/null && return 0
	for dir in /usr/sbin /opt/homebrew/bin /usr/local/bin; do
		[ -x "$root$dir/$1" ] && return 0
	done
	return 1
}

have_redis() { program redis-server || program valkey-server; }
have_prometheus() { program prometheus && program promtool; }
have_alertmanager() { { program alertmanager || program prometheus-alertmanager; } && program amtool; }
have_pgbouncer() { program pgbouncer; }
have_haproxy() { program haproxy; }
have_nginx() { program nginx; }
have_curl() { program curl; }
have_chromium() {
	program chromium || program chromium-browser || program google-chrome ||
		[ -x "$root/Applications/Chromium.app/Contents/MacOS/Chromium" ] ||
		[ -x "$root/Applications/Google Chrome.app/Contents/MacOS/Google Chrome" ]
}
have_node() { program node && program npm; }
have_systemd() { program systemd-analyze || [ "$(uname -s)" = Darwin ]; }

# The compiler that cgo would call. On macOS the race detector does without one.
have_cc() {
	cc=${CC:-gcc}
	command -v "${cc%% *}" >/dev/null || [ "$(uname -s)" = Darwin ]
}

have_wrk() { program wrk; }
have_lua() { [ -e "$root/usr/lib/nginx/modules/ngx_http_lua_module.so" ]; }
have_varnish() { program varnishd; }

# needs WHAT: says how to install it by hand
needs() {
	case $1 in
	postgres) echo 'PostgreSQL 15 or later' ;;
	redis) echo 'redis-server or valkey-server' ;;
	cc) echo 'gcc with the C library headers' ;;
	prometheus) echo 'prometheus with promtool' ;;
	alertmanager) echo 'Alertmanager with amtool' ;;
	chromium) echo 'Chromium or Chrome' ;;
	node) echo 'Node.js with npm' ;;
	lua) echo 'the Lua module of nginx' ;;
	*) echo "$1" ;;
	esac
}

# try COMMAND...: shows the output only if it fails
try() { "$@" >"$log" 2>&1 </dev/null; }

cleanup() {
	for path in $made; do rm -f "$path"; done
	[ -z "$made" ] || rmdir "$root/etc/postgresql-common/createcluster.d" "$root/etc/postgresql-common" 2>/dev/null || :
	[ -z "$log" ] || rm -f "$log"
}

# place PATH MODE TEXT: a file for the time of the installation. An existing file is not changed;
# one that a killed run left behind is taken over, and so removed in the end.
place() {
	if [ -e "$1" ] && ! grep -q 'deploy/install.sh' "$1"; then return 0; fi
	made="$made $1"
	mkdir -p "${1%/*}"
	printf '%s\n' "$3" >"$1"
	chmod "$2" "$1"
}

with_apt() {
	packages=
	for what in "$@"; do
		case $what in
		postgres) packages="$packages postgresql" ;;
		redis) packages="$packages redis-server" ;;
		cc) packages="$packages gcc libc6-dev" ;;
		chromium) # Ubuntu has another name for it
			if grep -q '^ID=ubuntu' "$root/etc/os-release" 2>/dev/null; then what=chromium-browser; fi
			packages="$packages $what"
			;;
		alertmanager) packages="$packages prometheus-alertmanager" ;;
		node) packages="$packages nodejs npm" ;;
		nginx) packages="$packages nginx-light" ;;
		lua) packages="$packages libnginx-mod-http-lua" ;;
		*) packages="$packages $what" ;;
		esac
	done
	say "apt-get install$packages"
	# Debian's packages start their servers and create a cluster by default.
	place "$root/usr/sbin/policy-rc.d" 755 '#!/bin/sh
# made by deploy/install.sh, which removes it when it ends
exit 101'
	place "$root/etc/postgresql-common/createcluster.d/listedge.conf" 644 '# made by deploy/install.sh, which removes it when it ends
create_main_cluster = false'
	# needrestart, on Ubuntu, would restart services that have nothing to do with this.
	export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
	# A new machine holds the lock for some minutes while it updates itself.
	# shellcheck disable=SC2086
	set -- apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 $packages
	if ! try "$@"; then
		# Lists that are missing or old are the usual reason. Not every apt waits for the lock of its lists.
		for pause in 2 8 30; do
			try apt-get update -q -o Acquire::Retries=3 && break
			sleep "$pause"
		done
		try "$@" || return 1
	fi
	# policy-rc.d keeps a server from starting now; this keeps it from starting with the machine.
	command -v systemctl >/dev/null || return 0
	for package in $packages; do
		case $package in redis-server | pgbouncer | prometheus | prometheus-alertmanager | haproxy | nginx-light | varnish)
			if [ "$package" = nginx-light ]; then package=nginx; fi
			systemctl disable "$package" >/dev/null 2>&1 || :
			;;
		esac
	done
}

with_dnf() {
	for what in "$@"; do
		case $what in
		postgres)
			say 'dnf install postgresql-server postgresql-contrib'
			try dnf install -y -q postgresql-server postgresql-contrib || return 1
			;;
		redis)
			say 'dnf install redis, or valkey, which took its place'
			try dnf install -y -q redis || try dnf install -y -q valkey || return 1
			;;
		cc)
			say 'dnf install gcc'
			try dnf install -y -q gcc || return 1
			;;
		prometheus)
			say 'dnf install prometheus and promtool, from whatever package has them'
			try dnf install -y -q /usr/bin/prometheus /usr/bin/promtool || return 1
			;;
		alertmanager)
			say 'dnf install alertmanager and amtool, from whatever package has them'
			try dnf install -y -q /usr/bin/alertmanager /usr/bin/amtool || return 1
			;;
		node)
			say 'dnf install node and npm, from whatever package has them'
			try dnf install -y -q /usr/bin/node /usr/bin/npm || return 1
			;;
		*) # what else is measured against is described for Debian alone
			say "dnf install $what"
			try dnf install -y -q "$what" || return 1
			;;
		esac
	done
}

with_brew() {
	export NONINTERACTIVE=1 HOMEBREW_NO_ENV_HINTS=1 HOMEBREW_NO_INSTALL_UPGRADE=1
	for what in "$@"; do
		formula=$what
		[ "$what" != postgres ] || formula=postgresql@17
		[ "$what" != chromium ] || formula=google-chrome # Homebrew's Chromium is not signed, so that macOS refuses it
		say "brew install $formula"
		try "$brew" install "$formula" || return 1
	done
}

[ $# -gt 0 ] || set -- postgres redis pgbouncer cc prometheus alertmanager haproxy nginx curl systemd chromium node
missing=
wanted=
for what in "$@"; do
	case $what in postgres | redis | pgbouncer | cc | prometheus | alertmanager | haproxy | nginx | curl | systemd | chromium | node | wrk | lua | varnish) ;; *)
		printf 'install: %s is none of postgres, redis, pgbouncer, cc, prometheus, alertmanager, haproxy, nginx, curl, systemd, chromium, node, wrk, lua, varnish\n' "$what" >&2
		exit 2
		;;
	esac
	"have_$what" && continue
	missing="$missing $what"
	wanted="${wanted:+$wanted; }$(needs "$what")"
done
[ -n "$missing" ] || exit 0

brew=$(command -v brew) || for brew in "$root"/opt/homebrew/bin/brew "$root"/usr/local/bin/brew ''; do
	[ ! -x "$brew" ] || break
done
if [ "$(uname -s)" = Darwin ]; then
	[ -n "$brew" ] || fail "missing: $wanted; install Homebrew and run this again, or install it by hand"
	with=with_brew
elif command -v apt-get >/dev/null; then
	with=with_apt
elif command -v dnf >/dev/null; then
	with=with_dnf
else
	fail "missing: $wanted; install it by hand, as this system has neither apt-get nor dnf"
fi

# The whole script runs as root, not each command: it has to remove the files that it placed.
if [ "$with" != with_brew ] && [ "$(id -u)" -ne 0 ]; then
	sudo -n true 2>/dev/null || fail "missing: $wanted; run: sudo sh $0$missing"
	# shellcheck disable=SC2086
	exec sudo -n sh "$0" $missing
fi

trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM
log=$(mktemp)
# shellcheck disable=SC2086
if ! "$with" $missing; then
	tail -n 20 "$log" >&2
	fail "could not install: $wanted"
fi
for what in $missing; do
	"have_$what" || fail "installed, and still missing: $(needs "$what")"
done
