#!/bin/sh
# Makes all files of a release in bin/release (Linux): programs, packages with the systemd unit, checksums, and the modules in each
# program as CycloneDX. The same commit gives the same bytes.
#
#   deploy/release/release.sh VERSION
set -eu
cd "$(dirname "$0")/../.."
go -C deploy/release build -o ../../bin/tools/ tool
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
# The first version of each architecture, whatever the environment says.
export VERSION="$1" SOURCE_DATE_EPOCH CGO_ENABLED=0 GOFLAGS='' GOAMD64=v1 GOARM64=v8.0
BUILT=$(mktemp -d)
export BUILT
trap 'rm -rf "$BUILT"' EXIT
out=bin/release
rm -rf $out
mkdir -p $out

for target in linux_amd64 linux_arm64 darwin_amd64 darwin_arm64; do
	export GOOS="${target%_*}" GOARCH="${target#*_}"
	name=listedge_${VERSION}_$target
	# The revision is written here: what Go itself notes of the repository differs between a clone and an archive.
	go build -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X main.version=$VERSION -X main.revision=$(git rev-parse HEAD)" -o "$BUILT/listedge" ./cmd/listedge
	./bin/tools/cyclonedx-gomod bin -json -noserial -notimestamp -version "v$VERSION" -output "$out/$name.cdx.json" "$BUILT/listedge"
	tar -c --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$SOURCE_DATE_EPOCH" \
		LICENSE README.md CHANGELOG.md deploy/systemd/listedge.service deploy/systemd/listedge.env deploy/systemd/database-url deploy/systemd/redis-url \
		-C "$BUILT" listedge | gzip -n >"$out/$name.tar.gz"
	[ "$GOOS" = linux ] || continue
	for format in deb rpm; do
		./bin/tools/nfpm package --config deploy/release/nfpm.yaml --packager $format --target "$out/listedge_${VERSION}_$GOARCH.$format"
	done
done
cd $out
sha256sum -- * >checksums.txt
