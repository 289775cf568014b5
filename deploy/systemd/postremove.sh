#!/bin/sh
# After a package is removed (dpkg: `remove`, then `purge`; rpm: 0), not when it makes room for the next version.
set -e
[ -d "${DPKG_ROOT:-}/run/systemd/system" ] || exit 0
case "$1" in
remove | purge | 0) systemctl daemon-reload ;;
esac
