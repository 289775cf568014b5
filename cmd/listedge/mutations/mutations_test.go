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
	primary   = "origin/postgres/primary.go"
	lineage   = "origin/lineage.go"
	heartbeat = "origin/follower/heartbeat.go"

	subscription = "internal/changefeed/subscription.go"
	subscriber   = "internal/changefeed/subscriber.go"
	following    = "cache/following.go"
)

var (
	// The page's statement comes first, and with time to spare, as it may where
	// one statement reads both.
	sameStatement = []edit{
		{"origin/standby.go", "\t\tis, err := s.replayed(soon, conn)\n", "\t\tread, readBy, readErr := o.read(ctx, conn, q)\n\t\ttime.Sleep(20 * time.Millisecond)\n\t\tis, err := s.replayed(soon, conn)\n"},
		{"origin/standby.go", "\t\trows, by, err = o.read(ctx, conn, q)\n", "\t\trows, by, err = read, readBy, readErr\n"},
	}
	ofItself      = []edit{{heartbeat, "\tt.enqueue(changefeed.Entry{Heartbeat: h})\n", "\tt.enqueue(changefeed.Entry{Heartbeat: h})\n\th.After = t.waiting[len(t.waiting)-1].Position\n"}}
	notedLate     = []edit{{heartbeat, "\th.Unsettled = withoutManyLists(t.unsettled.settle(t.snapshot))\n", "\th.Unsettled = withoutManyLists(t.unsettled.settle(t.snapshot))\n\th.After = t.last\n"}}
	atOrAfter     = []edit{{subscription, "after.Compare(reads[n].end) > 0", "after.Compare(reads[n].end) >= 0"}}
	cutProves     = []edit{{subscription, "if !cut && s.begun {", "if s.begun {"}}
	anyHeartbeat  = []edit{{subscription, "n < len(reads) && after.Compare(reads[n].end) > 0", "n < len(reads)"}}
	gapsIgnored   = []edit{{subscription, "case s.begun && !e.Follows(s.position):", "case s.begun && !e.Follows(s.position) && false:"}}
	noneAtJoin    = []edit{{subscription, "s.adoptUnsettled(h.Unsettled)", "s.adoptUnsettled(nil)"}}
	emptyProves   = []edit{{subscription, "if !cut && s.begun {", "if !cut {"}}
	flushPosition = []edit{{"origin/follower/catalog.sql", "pg_current_wal_insert_lsn()::text", "pg_current_wal_flush_lsn()::text"}}
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
		{"served although untrusted", []edit{{following, "return int64(now) < f.trustedUntil.Load()", "return f.trustedUntil.Load() > 0"}}, "./cmd/listedge/e2e", "TestFreshnessInShort"},
		{"no epoch for a crash, and no reset", []edit{ // each makes up for the other
			{"origin/follower/term.go", " || is.Instance != next.Instance:", " || is.Instance != next.Instance && false:"}, {"internal/changefeed/subscription.go", "s.joined && e.Heartbeat.StartedAt != s.startedAt:", "s.joined && false:"},
		}, "./cmd/listedge/e2e", "TestFreshnessOfLostCommits"},
		{"the LSN in the page's own statement", sameStatement, "./cmd/listedge/e2e", "TestFreshnessInShort"},

		// By what a follower proves, on a real server.
		// (After noted behind the snapshot, and not later, is the same entry: nothing
		// is appended between the two.)
		{"After is the heartbeat's own position", ofItself, "./origin/follower", "TestAHeartbeatProvesWhatWasVisible"},
		{"After noted when the heartbeat is sent", notedLate, "./origin/follower", "TestAHeartbeatProvesWhatWasVisible"},
		{"the flush position for the insert position", flushPosition, "./origin/follower", "TestAHeartbeatProvesWhatWasVisible"},

		// By the model, in virtual time.
		{"no unsettled at join", noneAtJoin, "./cache", "TestModel"},
		{"any heartbeat is a proof", anyHeartbeat, "./cache", "TestModel"},
		{"a read that saw the entry at After proves", atOrAfter, "./cache", "TestModel"},
		{"a read that was cut proves", cutProves, "./cache", "TestModel"},
		{"gaps ignored", gapsIgnored, "./cache", "TestModel"},
		{"merged at once", []edit{{"cache/replica/fill.go", "case !r.covers(&f.At):", "case false:"}}, "./cache", "TestModel"},
		{"rows outlive a reset", []edit{{following, "\tc.replica.Reset()\n", ""}}, "./cache", "TestModel"},
		{"trusted for longer", []edit{{following, "+ int64(f.bound))", "+ 2*int64(f.bound))"}}, "./cache", "TestModel"},
		{"an open transaction hides all after it", []edit{{"internal/changefeed/entry.go", "return !running", "return !running && false"}}, "./cache", "TestModel"},
		{"a machine that sleeps does not age", []edit{{"cache/cache.go", "at := c.clock.At(now)\n\te := c.fresh", "at := c.clock.Of(now)\n\te := c.fresh"}}, "./cache", "TestAfterASleep"},
		{"a read from before a sleep", []edit{{following, "c.clock.Of(p.Moment)", "c.clock.At(p.Moment)"}}, "./cache", "TestAfterASleep"},

		// By the subscription's own test. TestModel finds what is wrong with the rules above, too.
		{"a read before the first entry proves", emptyProves, "./internal/changefeed", "TestSubscription"},
		{"entries that cannot be decoded ignored", []edit{{subscription, "\tcase e.Undecodable():\n\t\tcause, ok = ResetUndecodable, false\n", ""}}, "./cache", "TestModel"},
		{"reads outlive the session", []edit{{subscription, "s.server, s.moved, s.reads = server, false, nil", "s.server, s.moved = server, false"}}, "./cache", "TestModel"},
		{"reads outlive a reset", []edit{{subscription, "s.reads, s.unsettled = nil, nil", "s.unsettled = nil"}}, "./internal/changefeed", "TestSubscription"},
		{"another run of the primary is overlooked", []edit{{subscription, "s.joined && e.Heartbeat.StartedAt != s.startedAt:", "s.joined && false:"}}, "./internal/changefeed", "TestSubscription"},

		// By what a subscriber does with a log.
		{"a read begins when it returned", []edit{{subscriber, "\tbegan := time.Now() // before the command is sent: Subscription\n", ""}, {subscriber, "if s.apply(began, entries, cut);", "if s.apply(time.Now(), entries, cut);"}}, "./internal/changefeed", "TestARecordedReadBeganBeforeItWasSent"},
		{"a session goes on with another reader", []edit{{subscriber, "\ts.subscription.NewSession(reader.InstanceID())\n", ""}}, "./internal/changefeed", "TestAFailedReadEndsTheSession"},
		{"a heartbeat of another server proves", []edit{{subscription, "h.LogServer != \"\" && h.LogServer != s.server", "false"}}, "./internal/changefeed", "TestSubscription"},
		{"a subscriber reads on although another server has the log", []edit{{subscriber, "s.subscription.LogHasMoved()", "false"}}, "./internal/changefeed", "TestASubscriberReadsWhereTheLogIsWritten"},
		{"a heartbeat comes after entries of another server", []edit{{"internal/changefeed/redis.go", "h.After.Compare(w.first) < 0", "false"}}, "./internal/changefeed", "TestHeartbeatsNameTheirServer"},
		{"an old epoch is written to", []edit{{"internal/changefeed/redis.go", "present and present ~= ARGV[1]", "false"}}, "./internal/changefeed", "TestLogs"},
		{"changes are appended one by one", []edit{{"origin/follower/publish.go", " && now.Sub(t.waitingSince) >= holdChanges", ""}}, "./origin/follower", "TestFastCommitsAreAppendedTogether"},
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
		{"a node is ready before it has looked", []edit{{"cmd/listedge/node/checks.go", "return errors.New(\"the timeline that the fleet follows is not known yet\")", "return nil"}}, "./cmd/listedge/node", "TestANodeThatHasNotLookedYet"},
		{"a node that starts knows of no newer timeline", []edit{{"cmd/listedge/node/node.go", "Number: n.followed.Newest()", "Number: 0"}}, "./cmd/listedge/e2e", "TestAnOldPrimaryDoesNotReachNodesOnTheNewOne"},
		{"the wrong server's page is shared", []edit{{"cache/fill.go", "err == nil && outcome == replica.WrongServer {", "err == nil && outcome == replica.Outcomes {"}}, "./cache", "TestAnAnswerOfAnotherPrimaryIsNotServed"},
		{"a changed key is used although the wrong server answers", []edit{{"origin/apikey/cache.go", " && !(changed && c.wrongServer.Load())", " && (!changed || true)"}}, "./origin/apikey", "TestTheWrongServerRevivesNoKey"},
		{"a standby ahead of its primary", []edit{{lineage, "l.lost = l.lost || p.LSN < l.seen", "_ = l.lost"}, {lineage, "l.floor == 0 || position < l.floor", "false"}}, "./cmd/listedge/e2e", "TestFreshnessOfAStandbyAheadOfItsPrimary"},
		{"a standby ahead of its primary is forgotten", []edit{{lineage, "lost: l.lost}", "lost: false}"}}, "./origin", "TestLineage"},
		{"a standby ahead of its primary, which has overtaken it", []edit{{lineage, "l.floor == 0 || position < l.floor", "l.floor == 0"}}, "./origin", "TestLineage"},
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
