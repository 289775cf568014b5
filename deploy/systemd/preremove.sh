#!/bin/sh
# Before a package is removed (dpkg: `remove`, rpm: 0), not before it is upgraded. The settings stay.
set -e
[ -d "${DPKG_ROOT:-}/run/systemd/system" ] || exit 0
case "$1" in
remove | 0) systemctl disable --now listedge.service ;;
esac
