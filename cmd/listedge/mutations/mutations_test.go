//go:build mutations

package mutations

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A test that never fails shows nothing. Here the rules of freshness are broken one
// at a time, in a copy of this repository, and their tests must fail:
//
//	make mutations ONLY=TestMutations
//	make mutations DRY=1    checks in a second that every edit still applies

var dry = flag.Bool("dry", false, "only check that the texts to replace and the tests exist")

// edit replaces the one occurrence of a text in a file.
type edit struct{ file, old, new string }

const (
	versions = "cache/freshness/versions.go"
	rules    = "cache/freshness/rules.go"

	primary   = "origin/postgres/primary.go"
	lineage   = "origin/lineage.go"
	heartbeat = "origin/follower/heartbeat.go"

	subscription = "internal/changefeed/subscription.go"
	subscriber   = "internal/changefeed/subscriber.go"

	notVisible = "\tif concern != Unconcerned {\n\t\tv.missed = c.sequence\n" // of Admit
)

var (
	noCheckAtFill  = []edit{{rules, notVisible, "\tif false {\n\t\tv.missed = c.sequence\n"}}
	settledAtOnce  = []edit{{subscription, "settled := snapshot.Sees(c.XID)", "settled := snapshot.Sees(c.XID) || true"}}
	prunedAtOnce   = edit{versions, "now-c.settledAt > fillTimeout", "now-c.settledAt >= 0"}
	generationBump = []edit{
		{rules, "\tjoin    uint64\n\ttrusted ", "\tjoin uint64\n\tgeneration uint64\n\ttrusted "},
		{rules, "return FillStart{at: readAt, join: t.join.Load()", "t.mu.Lock()\n\tdefer t.mu.Unlock()\n\treturn FillStart{generation: t.sequence, at: readAt, join: t.join.Load()"},
		{rules, notVisible, "\tif _ = c; version.last.Load() > start.generation || collection.last.Load() > start.generation {\n"},
		{versions, "if e.ReadPoint.sees(c) {", "if false {"},
	}
	// The page's statement comes first, and with time to spare, as it may where
	// one statement reads both.
	sameStatement = []edit{
		{"origin/standby.go", "\t\tis, err := s.replayed(soon, r.conn)\n", "\t\tread, readBy, readErr := o.read(ctx, r, q)\n\t\ttime.Sleep(20 * time.Millisecond)\n\t\tis, err := s.replayed(soon, r.conn)\n"},
		{"origin/standby.go", "\t\tpage, by, err = o.read(ctx, r, q)\n", "\t\tpage, by, err = read, readBy, readErr\n"},
	}
	ofItself      = []edit{{heartbeat, "\tt.enqueue(changefeed.Entry{Heartbeat: h})\n", "\tt.enqueue(changefeed.Entry{Heartbeat: h})\n\th.After = t.waiting[len(t.waiting)-1].Position\n"}}
	notedLate     = []edit{{heartbeat, "\th.Unsettled = withoutManyLists(t.unsettled.settle(t.snapshot))\n", "\th.Unsettled = withoutManyLists(t.unsettled.settle(t.snapshot))\n\th.After = t.last\n"}}
	atOrAfter     = []edit{{subscription, "after.Compare(reads[n].end) > 0", "after.Compare(reads[n].end) >= 0"}}
	cutProves     = []edit{{subscription, "if !cut && s.begun {", "if s.begun {"}}
	anyHeartbeat  = []edit{{subscription, "moment, rest, ok := proves(s.reads, h.After)", "moment, rest, ok := time.Now(), s.reads, true"}}
	gapsIgnored   = []edit{{subscription, "case s.begun && !e.Follows(s.position):", "case s.begun && !e.Follows(s.position) && false:"}}
	noneAtJoin    = []edit{{subscription, "s.adoptUnsettled(h.Unsettled)", "s.adoptUnsettled(nil)"}}
	emptyProves   = []edit{{subscription, "if !cut && s.begun {", "if !cut {"}}
	flushPosition = []edit{{"origin/follower/catalog.sql", "pg_current_wal_insert_lsn()::text", "pg_current_wal_flush_lsn()::text"}}
	anySnapshot   = []edit{
		{versions, "func (r *ReadPoint) OnStandby() bool { return r.Server != \"\" }", "func (r *ReadPoint) OnStandby() bool { return false }"},
		{"origin/standby.go", "page.Snapshot, page.Run, page.Timeline, page.LSN = \"\", \"\", is.Timeline.String(), is.LSN", "page.Timeline, page.LSN = is.Timeline.String(), is.LSN"},
		{"origin/lineage.go", "position < max(l.floor, n.LSN)", "position < l.floor"},
	}
)

// mutation is a rule broken, and the test that must notice.
type mutation struct {
	name     string
	edits    []edit
	pkg, run string
}

func TestMutations(t *testing.T) {
	caught(t, []mutation{
		// By the oracle, on real servers.
		{"no check at fill", noCheckAtFill, "./cmd/listedge/e2e", "TestFreshnessInShort"},
		{"no unsettled changes", append([]edit{
			{heartbeat, "h.Unsettled = withoutManyLists(t.unsettled.settle(t.snapshot))", "t.unsettled.settle(t.snapshot)"}, prunedAtOnce,
		}, settledAtOnce...), "./cmd/listedge/e2e", "TestFreshnessInShort"},
		{"generation bump", generationBump, "./cmd/listedge/e2e", "TestFreshnessInShort"},
		{"served although untrusted", []edit{{rules, "return int64(now) < t.trustedUntil.Load()", "return t.trustedUntil.Load() > 0"}}, "./cmd/listedge/e2e", "TestFreshnessInShort"},
		{"no epoch for a crash, and no reset", []edit{ // each makes up for the other
			{"origin/follower/term.go", " || is.Run != next.Run:", " || is.Run != next.Run && false:"}, {"internal/changefeed/subscription.go", "s.proven && e.Heartbeat.Run != s.run:", "s.proven && false:"},
		}, "./cmd/listedge/e2e", "TestFreshnessOfLostCommits"},
		{"the snapshot rule on the standby", anySnapshot, "./cmd/listedge/e2e", "TestFreshnessInShort"},
		{"the LSN in the page's own statement", sameStatement, "./cmd/listedge/e2e", "TestFreshnessInShort"},

		// By what a follower proves, on a real server.
		// (After noted behind the snapshot, and not later, is the same entry: nothing
		// is appended between the two.)
		{"After is the heartbeat's own position", ofItself, "./origin/follower", "TestAHeartbeatProvesWhatWasVisible"},
		{"After noted when the heartbeat is sent", notedLate, "./origin/follower", "TestAHeartbeatProvesWhatWasVisible"},
		{"the flush position for the insert position", flushPosition, "./origin/follower", "TestAHeartbeatProvesWhatWasVisible"},

		// By the model, in virtual time.
		{"no check at fill", noCheckAtFill, "./cache/freshness", "TestModel"},
		{"generation bump", generationBump, "./cache/freshness", "TestModel"},
		{"settled at once", settledAtOnce, "./cache/freshness", "TestModel"},
		{"no unsettled at join", noneAtJoin, "./cache/freshness", "TestModel"},
		{"changes dropped at once", []edit{prunedAtOnce}, "./cache/freshness", "TestModel"},
		{"rule 2 ignores what was pruned", []edit{{versions, "\tif sequence < v.dropped.sequence {\n\t\treturn Forgotten, nil\n\t}\n", ""}}, "./cache/freshness", "TestModel"},
		{"rule 2 ignores whole collections", []edit{{rules, "\t\tconcern, c = compare(collection)\n", ""}}, "./cache/freshness", "TestModel"},
		{"rule 1 ignores whole collections", []edit{{rules, " && s >= v.collection.last.Load()", ""}}, "./cache/freshness", "TestModel"},
		{"a page from Redis from before the join", []edit{{rules, " || v.Position.Compare(t.joinedAt) < 0", ""}}, "./cache/freshness", "TestModel"},
		{"a page from Redis that may not know what was pruned", []edit{{versions, "\tif position.Compare(v.dropped.position) < 0 {\n\t\treturn Forgotten, nil\n\t}\n", ""}}, "./cache/freshness", "TestModel"},
		{"forgotten lists leave no position", []edit{{versions, "\t\tl.others.raise(last)\n", ""}}, "./cache/freshness", "TestModel"},
		{"entries of forgotten lists are current", []edit{{versions, "\t\tv.last.Store(math.MaxUint64)\n\t\tv.dropped = forgotten\n", ""}}, "./cache/freshness", "TestModel"},
		{"any heartbeat is a proof", anyHeartbeat, "./cache/freshness", "TestModel"},
		{"a read that saw the entry at After proves", atOrAfter, "./cache/freshness", "TestModel"},
		{"a read that was cut proves", cutProves, "./cache/freshness", "TestModel"},
		{"fills may take long", []edit{{rules, "\tcase max(now, t.pruned)-start.at > t.fillTimeout:", "\tcase false:"}}, "./cache/freshness", "TestModel"},
		{"fills may be paused", []edit{{rules, "max(now, t.pruned)-start.at", "now-start.at"}}, "./cache/freshness", "TestAPausedFillIsLate"},
		{"fills begun without trust", []edit{{rules, "case !start.trusted:", "case !start.trusted && false:"}, {rules, "\tif start.trusted {", "\tif true {"}, {rules, "\t} else { // the list is not remembered: while nothing is proven, none is forgotten\n\t\tt.mu.RLock()\n", ""}}, "./cache/freshness", "TestRules"},
		{"fills across a resync", []edit{{rules, "\tcase start.join != t.join.Load():\n\t\treturn Resynced\n", ""}}, "./cache/freshness", "TestModel"},
		{"gaps ignored", gapsIgnored, "./cache/freshness", "TestModel"},
		{"an open transaction hides all after it", []edit{{"internal/changefeed/entry.go", "return !running", "return !running && false"}}, "./cache/freshness", "TestModel"},
		{"the snapshot rule on the standby", anySnapshot, "./cache/freshness", "TestModel"},
		{"a standby behind the list's last change", []edit{{versions, "return c.lsn > e.ReadPoint.LSN })", "return false })"}}, "./cache/freshness", "TestModel"},
		{"a standby behind a change that was dropped", []edit{{versions, "\tif e.ReadPoint.LSN < v.dropped.lsn {\n\t\treturn Forgotten, nil\n\t}\n", ""}}, "./cache/freshness", "TestModel"},
		{"a standby behind where the node joined", []edit{{rules, "\tcase standby && r.LSN < t.joinLSN:\n\t\treturn Lagging\n", ""}}, "./cache/freshness", "TestModel"},
		{"a standby's page proven by when it was asked", []edit{{rules, "\tif standby {\n\t\tv.Proof = time.Duration(t.proof.Load())\n\t}\n", ""}}, "./cache/freshness", "TestStandbys"},
		{"a page from Redis as young as clocks say", []edit{{rules, "v.Proof = min(v.Proof, v.ReadAt)", "_ = v.Proof"}}, "./cache/freshness", "TestAValidatedEntryIsNoYoungerThanTheProof"},
		{"a machine that sleeps does not age", []edit{{"cache/cache.go", "s.entry.Load(), c.clock.At(now)", "s.entry.Load(), c.clock.Of(now)"}}, "./cache", "TestAfterASleep"},
		{"a read from before a sleep", []edit{{"cache/changes.go", "c.clock.Of(p.Moment)", "c.clock.At(p.Moment)"}}, "./cache", "TestAfterASleep"},
		{"a standby of another server", []edit{{rules, "\tcase standby && r.Server != t.last.Server:\n\t\treturn WrongServer\n", ""}}, "./cache/freshness", "TestStandbys"},

		// By the subscription's own test. TestModel finds what is wrong with the rules above, too.
		{"a read before the first entry proves", emptyProves, "./internal/changefeed", "TestSubscription"},
		{"entries that cannot be decoded ignored", []edit{{subscription, "\tcase e.Undecodable():\n\t\tcause, ok = ResetUndecodable, false\n", ""}}, "./cache/freshness", "TestModel"},
		{"reads outlive the session", []edit{{subscription, "s.server, s.moved, s.reads = server, false, nil", "s.server, s.moved = server, false"}}, "./cache/freshness", "TestModel"},
		{"reads outlive a reset", []edit{{subscription, "s.reads, s.unsettled = nil, nil", "s.unsettled = nil"}}, "./internal/changefeed", "TestSubscription"},
		{"another run of the primary is overlooked", []edit{{subscription, "s.proven && e.Heartbeat.Run != s.run:", "s.proven && false:"}}, "./internal/changefeed", "TestSubscription"},

		// By what a subscriber does with a log.
		{"a read begins when it returned", []edit{{subscriber, "\tbegan := time.Now() // before the command is sent: Subscription\n", ""}, {subscriber, "if s.apply(began, entries, cut);", "if s.apply(time.Now(), entries, cut);"}}, "./internal/changefeed", "TestARecordedReadBeganBeforeItWasSent"},
		{"a session goes on with another reader", []edit{{subscriber, "\ts.subscription.NewSession(reader.InstanceID())\n", ""}}, "./internal/changefeed", "TestAFailedReadEndsTheSession"},
		{"a heartbeat of another server proves", []edit{{subscription, "h.LogServer != \"\" && h.LogServer != s.server", "false"}}, "./internal/changefeed", "TestSubscription"},
		{"a subscriber reads on although another server has the log", []edit{{subscriber, "s.subscription.LogHasMoved()", "false"}}, "./internal/changefeed", "TestASubscriberReadsWhereTheLogIsWritten"},
		{"a heartbeat comes after entries of another server", []edit{{"internal/changefeed/redis.go", "h.After.Compare(w.first) < 0", "false"}}, "./internal/changefeed", "TestHeartbeatsNameTheirServer"},
		{"an old epoch is written to", []edit{{"internal/changefeed/redis.go", "present and present ~= ARGV[1]", "false"}}, "./internal/changefeed", "TestLogs"},
		{"changes are appended one by one", []edit{{"origin/follower/publish.go", " && now.Sub(t.appendedAt) >= pause", ""}}, "./origin/follower", "TestFastCommitsAreAppendedTogether"},
		{"a change of the schema leaves the unsettled changes as they are", []edit{{"origin/follower/term.go", "\t\t\t\tt.publishSameAsWhole()\n", ""}}, "./cmd/listedge/e2e", "TestACommitThatWaitsWhileATableIsRewritten"},
		{"a second attempt counts", []edit{{"origin/follower/publish.go", "attempts == 1", "true"}}, "./origin/follower", "TestAHeartbeatDoesNotComeAfterADoubtfulEntry"},
		{"an open transaction is judged by the new catalog", []edit{{"origin/follower/decode.go", "append(slices.Collect(maps.Values(d.streamed)), d.openTransaction)", "slices.Collect(maps.Values(d.streamed))"}}, "./origin/follower", "TestAnOpenTransactionIsJudgedByBothCatalogs"},
		{"heartbeats say all of what waits", []edit{{"origin/follower/heartbeat.go", "if lists <= maxLists {", "if true {"}}, "./origin/follower", "TestHeartbeatsStaySmall"},
		{"no read is cut", []edit{{"internal/changefeed/redis.go", "len(entries) >= readBatch, nil", "false, nil"}}, "./internal/changefeed", "TestLogs"},

		// Of servers that are not the primary, or not its standby.
		{"a standby's answer is the primary's", []edit{{primary, "case by.Standby:", "case by.Standby && false:"}}, "./origin", "TestAStandbyIsNotThePrimary"},
		{"the second answer is the primary's", []edit{{primary, "err == nil {\n\t\t\terr = p.check(ctx, f, by)", "err == nil {\n\t\t\t_ = by"}}, "./origin", "TestAnEarlierTimelineIsRefused"},
		{"any timeline is the primary's", []edit{{"origin/postgres/servers.go", "t.Number < newer.Number", "t.Number < newer.Number && false"}}, "./origin", "TestAnEarlierTimelineIsRefused"},
		{"each query makes connections", []edit{{primary, "now-last > int64(PrimaryCooldown) && ", ""}}, "./origin", "TestTheWrongServerGetsFewConnections"},
		{"answers are taken before they can be judged", []edit{{primary, "if err := p.awaitTimeline(ctx); err != nil {", "if err := p.awaitTimeline(ctx); err != nil && false {"}}, "./origin", "TestNothingIsReadBeforeTheTimelineIsKnown"},
		{"a node answers before it has looked", []edit{{"cmd/listedge/node/node.go", ", TimelineKnown: n.timelineKnown", ""}}, "./cmd/listedge/node", "TestANodeThatHasNotLookedYet"},
		{"a node is ready before it has looked", []edit{{"cmd/listedge/node/identity.go", "return errors.New(\"the timeline that the fleet follows is not known yet\")", ""}}, "./cmd/listedge/node", "TestANodeThatHasNotLookedYet"},
		{"a node that starts knows of no newer timeline", []edit{{"cmd/listedge/node/node.go", "Number: n.followed.Newest()", "Number: 0"}}, "./cmd/listedge/e2e", "TestAnOldPrimaryDoesNotReachNodesOnTheNewOne"},
		{"the wrong server's page is shared", []edit{{"cache/fill.go", "admission == freshness.WrongServer {", "admission == freshness.Admissions {"}}, "./cache", "TestAnAnswerOfAnotherServerIsAnError"},
		{"a changed key is used although the wrong server answers", []edit{{"origin/apikey/cache.go", " && !(changed && c.wrongServer.Load())", " && (!changed || true)"}}, "./origin/apikey", "TestTheWrongServerRevivesNoKey"},
		{"a standby ahead of its primary", []edit{{lineage, "l.lost = l.lost || n.Primary < l.seen", "_ = l.lost"}, {lineage, "l.floor == 0 || position < max(l.floor, n.LSN)", "position < n.LSN"}}, "./cmd/listedge/e2e", "TestFreshnessOfAStandbyAheadOfItsPrimary"},
		{"a standby ahead of its primary is forgotten", []edit{{lineage, "lost: l.lost}", "lost: false}"}}, "./origin", "TestLineage"},
		{"a standby ahead of its primary, which has overtaken it", []edit{{lineage, "max(l.floor, n.LSN)", "n.LSN"}}, "./origin", "TestLineage"},
	})
}

// caught applies the mutations one at a time and expects their tests to fail.
func caught(t *testing.T, mutations []mutation) {
	root := ""
	if !*dry {
		root = copyOfRepository(t)
	}
	for _, m := range mutations {
		t.Run(m.pkg+" "+m.name, func(t *testing.T) {
			if *dry {
				applies(t, m)
				return
			}
			for _, e := range m.edits {
				defer mutate(t, filepath.Join(root, e.file), e)()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			began := time.Now()
			c := exec.CommandContext(ctx, "go", "test", "-count=1", "-trimpath", "-tags", "mutations", "-run", "^"+m.run+"$", m.pkg)
			c.Dir = root
			out, err := c.CombinedOutput()
			switch {
			case err == nil:
				t.Errorf("survived\n%s", out)
			case !strings.Contains(string(out), "--- FAIL: "+m.run):
				t.Errorf("did not get as far as the test\n%s", out)
			default:
				t.Logf("caught in %s: %s", time.Since(began).Round(time.Second), why(filepath.Join(root, m.pkg), string(out)))
			}
		})
	}
}

// applies checks that each text to replace occurs once, and that the test exists.
func applies(t *testing.T, m mutation) {
	for _, e := range m.edits {
		if n := strings.Count(contents(t, e.file), e.old); n != 1 {
			t.Errorf("%q occurs %d times in %s", e.old, n, e.file)
		}
	}
	if name, _, _ := strings.Cut(m.run, "/"); !declares(filepath.Join("..", "..", "..", m.pkg), regexp.MustCompile(`^\w*`).FindString(name)) {
		t.Errorf("no test is called %s in %s", name, m.pkg)
	}
}

// said is a line that a test printed, and where.
var said = regexp.MustCompile(`(?m)^ +(\w+_test\.go):(\d+): .*$`)

// why is the first error that the tests in the folder printed.
func why(folder, out string) string {
	for _, m := range said.FindAllStringSubmatch(out, -1) {
		source, err := os.ReadFile(filepath.Join(folder, m[1]))
		n, _ := strconv.Atoi(m[2])
		if lines := strings.Split(string(source), "\n"); err == nil && n <= len(lines) && !strings.Contains(lines[n-1], ".Log") {
			return strings.TrimSpace(m[0])
		}
	}
	return "it ended"
}

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
	entries, err := os.ReadDir("../../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		from, to := filepath.Join("../../..", e.Name()), filepath.Join(root, e.Name())
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

// contents reads a file of the repository, by its path from the root.
func contents(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// declares reports whether a package has a test of this name.
func declares(folder, name string) bool {
	return exec.Command("grep", "-rqE", "^func "+name+`\(`, folder, "--include=*_test.go").Run() == nil
}
