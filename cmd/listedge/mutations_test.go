//go:build mutations

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A test that never fails shows nothing. Here the rules of freshness are
// broken one at a time, in a copy of this repository, and the tests that are
// about them must fail:
//
//	go test -tags mutations -run TestMutations -timeout 30m ./cmd/listedge

// edit replaces the one occurrence of a text in a file.
type edit struct{ file, old, new string }

const (
	pairs   = "cache/pairs.go"
	follows = "origin/follower/follower.go"
)

var (
	noCheckAtFill  = []edit{{pairs, "\t\t\tif !p.Snapshot.Sees(e.xid) {", "\t\t\tif false && !p.Snapshot.Sees(e.xid) {"}}
	settledAtOnce  = []edit{{pairs, "if !e.settled && snapshot.Sees(e.xid) {", "if !e.settled && (true || snapshot.Sees(e.xid)) {"}}
	generationBump = []edit{
		{pairs, "\tjoin uint64\n\tok ", "\tjoin uint64\n\tgeneration uint64\n\tok "},
		{pairs, "return fillStart{at: now, join: t.join.Load()", "t.mu.Lock()\n\tdefer t.mu.Unlock()\n\treturn fillStart{generation: t.sequence, at: now, join: t.join.Load()"},
		{pairs, "\t\t\tif !p.Snapshot.Sees(e.xid) {", "\t\t\tif e.sequence > start.generation {"},
		{pairs, "if e.sequence > s && !p.Snapshot.Sees(e.xid) {", "if e.sequence > s {"},
		{pairs, "> 0 && !p.Snapshot.Sees(e.xid) {", "> 0 {"},
	}
)

func TestMutations(t *testing.T) {
	root := copyOfRepository(t)
	for _, m := range []struct {
		name     string
		edits    []edit
		pkg, run string
	}{
		// By the oracle, on real servers.
		{"no check at fill", noCheckAtFill, "./cmd/listedge", "TestFreshnessInShort"},
		{"no unsettled changes", append([]edit{
			{follows, "h.Unsettled = append([]stream.Change(nil), kept...)", "h.Unsettled = nil"},
			{pairs, "now-e.settledAt > t.fill", "now-e.settledAt >= 0"},
		}, settledAtOnce...), "./cmd/listedge", "TestFreshnessInShort"},
		{"generation bump", generationBump, "./cmd/listedge", "TestFreshnessInShort"},
		{"served although untrusted", []edit{{pairs, "return int64(now.Sub(t.start)) < t.trustedUntil.Load()", "return t.trustedUntil.Load() > 0"}}, "./cmd/listedge", "TestFreshnessInShort"},
		{"no epoch for a crash", []edit{{follows, "created || of != incarnation", "created || of == \"\""}}, "./cmd/listedge", "TestFreshnessOfLostCommits"},

		// By the model, in virtual time.
		{"no check at fill", noCheckAtFill, "./cache", "TestModel"},
		{"generation bump", generationBump, "./cache", "TestModel"},
		{"settled at once", settledAtOnce, "./cache", "TestModel"},
		{"no unsettled at join", []edit{{pairs, "range h.Unsettled {", "range h.Unsettled[:0] {"}}, "./cache", "TestModel"},
		{"ring pruned at once", []edit{{pairs, "now-e.settledAt > t.fill", "now-e.settledAt >= 0"}}, "./cache", "TestModel"},
		{"rule 2 ignores what was pruned", []edit{{pairs, "if s < state.pruned {", "if false {"}}, "./cache", "TestModel"},
		{"rule 2 ignores whole collections", []edit{{pairs, " || !p.whole.seenSince(s, p)", ""}}, "./cache", "TestModel"},
		{"rule 1 ignores whole collections", []edit{{pairs, " && s >= p.whole.last.Load()", ""}}, "./cache", "TestModel"},
		{"a page from Redis from before the join", []edit{{pairs, " || p.Position.Compare(t.joinedAt) < 0", ""}}, "./cache", "TestModel"},
		{"a page from Redis that may not know what was pruned", []edit{{pairs, "if p.Position.Compare(ps.prunedAt) < 0 {", "if false {"}}, "./cache", "TestModel"},
		{"any heartbeat is a proof", []edit{{pairs, "sentAt, ours := t.sent[h.Nonces[node]]", "sentAt, ours := now, true"}}, "./cache", "TestModel"},
		{"fills may take long", []edit{{pairs, " || time.Since(start.at) > t.fill", ""}}, "./cache", "TestModel"},
		{"fills begun without trust", []edit{{pairs, "!start.ok || ", ""}}, "./cache", "TestModel"},
		{"fills across a resync", []edit{{pairs, "start.join != t.join.Load() || ", ""}}, "./cache", "TestModel"},
		{"gaps ignored", []edit{{pairs, "gap := t.read && !follows(t.position, e)", "gap := t.read && !follows(t.position, e) && false"}}, "./cache", "TestModel"},
		{"an open transaction hides all after it", []edit{{"stream/snapshot.go", "return !running", "return !running && false"}}, "./cache", "TestModel"},
	} {
		t.Run(m.pkg+" "+m.name, func(t *testing.T) {
			for _, e := range m.edits {
				defer mutate(t, filepath.Join(root, e.file), e)()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			began := time.Now()
			c := exec.CommandContext(ctx, "go", "test", "-count=1", "-trimpath", "-run", "^"+m.run+"$", m.pkg)
			c.Dir = root
			out, err := c.CombinedOutput()
			switch {
			case err == nil:
				t.Errorf("survived\n%s", out)
			case !strings.Contains(string(out), "--- FAIL: "+m.run):
				t.Errorf("did not get as far as the test\n%s", out)
			default:
				t.Logf("caught in %s: %s", time.Since(began).Round(time.Second), why.FindString(string(out)))
			}
		})
	}
}

// why is a test's first complaint.
var why = regexp.MustCompile(`(?m)^ +\w+_test\.go:\d+: .*(shown as fresh|does not show|shown still|shows, from|hits: ).*$`)

func mutate(t *testing.T, file string, e edit) (undo func()) {
	t.Helper()
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(before), e.old); n != 1 {
		t.Fatalf("%q occurs %d times in %s", e.old, n, e.file)
	}
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.Replace(string(before), e.old, e.new, 1))
	return func() { write(string(before)) }
}

// copyOfRepository is what Go and its tests need of it.
func copyOfRepository(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	entries, err := os.ReadDir("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		from, to := filepath.Join("../..", e.Name()), filepath.Join(root, e.Name())
		switch {
		case e.Name() == ".git" || e.Name() == "bin":
		case e.IsDir():
			err = os.CopyFS(to, os.DirFS(from))
		default:
			var text []byte
			if text, err = os.ReadFile(from); err == nil {
				err = os.WriteFile(to, text, 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}
