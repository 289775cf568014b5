#!/bin/sh
set -e
[ -d "${DPKG_ROOT:-}/run/systemd/system" ] || exit 0
systemctl daemon-reload
