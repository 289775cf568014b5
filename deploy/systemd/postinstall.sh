#!/bin/sh
# After a package is installed or upgraded. dpkg says `configure` and the old version, if there is one; rpm says how many versions
# there are now. Nothing is started before it has settings.
set -e
[ -d "${DPKG_ROOT:-}/run/systemd/system" ] || exit 0 # an image is being built, or another init is at work
systemctl daemon-reload
case "$1:$2" in
configure: | 1:) echo "listedge: put the addresses of Postgres and Redis into /etc/listedge, then: systemctl enable --now listedge" ;;
*) systemctl --no-block try-restart listedge.service ;; # drains first; is ready when Postgres answers
esac
