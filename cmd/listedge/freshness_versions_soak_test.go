//go:build soak && older

package main

import (
	"flag"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var older = flag.String("older", "", "a revision of this repository, whose program runs beside this one in a fleet")

// TestSoakFreshnessAcrossVersions runs nodes of an older version and of this one in a
// fleet, as during an upgrade, with a follower of either version:
//
//	make soak OLDER=v0.1
func TestSoakFreshnessAcrossVersions(t *testing.T) {
	if *older == "" {
		t.Fatal("name a revision with -older")
	}
	olderProgram := buildRevision(t, *older)
	for name, first := range map[string]string{"the older version follows first": olderProgram, "this version follows first": ""} {
		t.Run(name, func(t *testing.T) {
			f := fleetOf(t)
			f.program = first
			f.startNodes(t, 1)
			f.follower(t)
			f.program = ""
			if first == "" {
				f.program = olderProgram
			}
			f.startNodes(t, 2)
			o := newOracle(t, f)
			for _, x := range faultsOfRedisAndNodes { // the last kills the follower: another version follows
				o.play(t, x)
			}
			o.play(t, noFault)
		})
	}
}

// buildRevision builds the program as it was at a revision.
func buildRevision(t *testing.T, revision string) (program string) {
	t.Helper()
	dir := t.TempDir()
	program = filepath.Join(dir, "listedge-of-"+strings.ReplaceAll(revision, "/", "-"))
	script := `git -C ../.. archive "$1" | tar -x -C "$2" && cd "$2" && go build -o "$3" ./cmd/listedge`
	if out, err := exec.Command("sh", "-c", script, "sh", revision, dir, program).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", revision, err, out)
	}
	return program
}
