#!/bin/sh
# Fetches the newest servers to compare with, for `make bench`:
#
#   bench/opponents.sh FOLDER
#
# It takes nginx with Lua, Vinyl Cache (which was Varnish up to version 8) and Redis from Debian's suites unstable and
# experimental, whichever has the newer one, by the machine's own apt: from the archive that apt is configured with, with its
# signatures. The machine is left as it is: packages are unpacked into FOLDER/root with the libraries that they need, and
# FOLDER/bin has a program for each, which starts it with these. FOLDER/asked says when. What was fetched less than a day
# ago is kept, and what is older is if nothing newer can be had. Exits 1 if there is nothing to compare with.
set -eu

folder=${1:?names the folder}
packages='nginx libnginx-mod-http-lua vinyl-cache redis-server'
apt=

fail() {
	printf 'opponents: %s\n' "$*" >&2
	[ -e "$folder/asked" ] || exit 1
	printf 'opponents: goes on with those of %s\n' "$(cat "$folder/asked")" >&2
	exit 0
}

cleanup() {
	[ -z "$apt" ] || rm -rf "$apt" "$folder.new"
}

[ ! -e "$folder" ] || [ -e "$folder/asked" ] || fail "$folder is not from here"
[ -z "$(find "$folder/asked" -mtime -1 2>/dev/null)" ] || exit 0
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || fail 'this system has no apt'
archive=$(apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' | sed -n 's/^Debian main //p' | head -n 1)
[ -n "$archive" ] || fail 'apt has no lists of Debian: run apt-get update'

trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM
apt=$(mktemp -d)
chmod 755 "$apt" # apt fetches as another account
mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial"
for suite in unstable experimental; do echo "deb $archive $suite main"; done >"$apt/sources.list"
printf 'Package: nginx* libnginx* vinyl* libvinyl* redis*\nPin: release a=experimental\nPin-Priority: 500\n' >"$apt/preferences"
# What these need of the machine, and is not fetched: a compiler, for Vinyl Cache, and what makes accounts.
for name in gcc-x86-64-linux-gnu gcc-aarch64-linux-gnu binutils libc6-dev systemd; do
	printf 'Package: %s\nStatus: install ok installed\nVersion: 999\nArchitecture: %s\nMaintainer: none\nDescription: none\n\n' \
		"$name" "$(dpkg --print-architecture)"
done >"$apt/status"

with_apt() {
	apt-get -q -y -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferences="$apt/preferences" \
		-o Dir::Etc::preferencesparts=/dev/null -o Dir::State="$apt/state" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
		-o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::Retries=3 -o APT::Update::Error-Mode=any \
		-o APT::Install-Recommends=false "$@" >"$apt/log" 2>&1 </dev/null
}

echo "opponents: fetches $packages from Debian's unstable and experimental suites" >&2
# shellcheck disable=SC2086
if ! { with_apt update && with_apt --download-only install $packages; }; then
	tail -n 5 "$apt/log" >&2
	fail "cannot fetch $packages"
fi
rm -rf "$folder.new"
mkdir -p "$folder.new/root" "$folder.new/bin"
for package in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$package" "$folder.new/root" || fail "cannot unpack $package"; done

# program NAME PATH: NAME starts PATH of the root with the loader and the libraries of the root. It is as old as that.
program() {
	cat >"$folder.new/bin/$1" <<-END
		#!/bin/sh
		root=\${0%/bin/*}/root
		for loader in "\$root"/usr/lib*/ld-linux*.so.*; do [ ! -x "\$loader" ] || break; done
		for libc in "\$root"/usr/lib/*/libc.so.6; do break; done
		exec "\$loader" --library-path "\${libc%/*}" "\$root$2" "\$@"
	END
	chmod 755 "$folder.new/bin/$1"
	touch -r "$folder.new/root$2" "$folder.new/bin/$1"
}
program nginx /usr/sbin/nginx
program varnishd /usr/sbin/vinyld
program redis-server /usr/bin/redis-server
for run in 'nginx -v' 'varnishd -V' 'redis-server --version'; do
	"$folder.new/bin/"$run >"$apt/log" 2>&1 || fail "${run%% *} does not run here: $(cat "$apt/log")"
done
date -u +%Y-%m-%d >"$folder.new/asked"
rm -rf "$folder"
mv "$folder.new" "$folder"
