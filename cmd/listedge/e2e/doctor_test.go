package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"listedge/cmd/listedge/doctor"
	"listedge/internal/sandbox"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
)

// consult runs the command once.
func consult(t *testing.T, args ...string) (findings []doctor.Finding, p *program) {
	t.Helper()
	p = start(t, append([]string{"doctor", "--json"}, args...)...)
	<-p.ended
	_ = json.Unmarshal([]byte(p.out.String()), &findings) // none, if it is none
	return findings, p
}

// examine runs the command until it ends with this status and each check had an answer in time, which
// it may not have on a busy machine. It returns the findings.
func examine(t *testing.T, wantCode int, args ...string) (findings []doctor.Finding) {
	t.Helper()
	within(t, patience, fmt.Sprintf("the doctor ends with %d", wantCode), func() bool {
		var p *program
		findings, p = consult(t, args...)
		if p.code != wantCode {
			t.Logf("exit %d: %s%s", p.code, p.out.String(), p.err.String())
		}
		return findings != nil && p.code == wantCode &&
			!slices.ContainsFunc(findings, func(f doctor.Finding) bool {
				return strings.Contains(f.Text, "no answer in time") || strings.Contains(f.Text, "statement timeout")
			})
	})
	for _, f := range findings {
		if f.Text == "" || (f.Level == doctor.OK) != (f.Remedy == "") {
			t.Errorf("%+v", f)
		}
	}
	return findings
}

// diagnose runs the command and returns its findings by subject.
func diagnose(t *testing.T, wantCode int, args ...string) map[string]doctor.Finding {
	t.Helper()
	by := map[string]doctor.Finding{}
	for _, f := range examine(t, wantCode, args...) {
		by[f.Subject] = f
	}
	return by
}

// allFine waits until all findings but one are fine: a node has just begun to follow, or its
// heartbeats are late on a busy machine.
func allFine(t *testing.T, but string, args ...string) (by map[string]doctor.Finding) {
	t.Helper()
	within(t, patience, "all is fine", func() bool {
		by = diagnose(t, exitFine, args...)
		for subject, f := range by {
			if f.Level != doctor.OK && subject != but {
				t.Log(f)
				return false
			}
		}
		return true
	})
	return by
}

func expect(t *testing.T, by map[string]doctor.Finding, subject string, level doctor.Level, text string) {
	t.Helper()
	if f := by[subject]; f.Level != level || !strings.Contains(f.Text+f.Remedy, text) {
		t.Errorf("%s: %+v, want %s, %q", subject, f, level, text)
	}
}

func TestDoctorOnGoodServers(t *testing.T) {
	t.Parallel()
	_, address := privateDatabase(t)
	r := sandboxtest.Redis(t)
	if printed := command(t, "migrate", "up", "--database-url", address); !strings.Contains(printed, "made the slot listedge_") {
		t.Error(printed)
	}
	by := diagnose(t, exitFine, "--database-url", address, "--redis-url", r.URL())
	expect(t, by, "slot", doctor.Warn, "no node follows it")
	for _, again := range []struct{ undo, want string }{
		{"SELECT", "nothing to apply\n"},
		{"DROP PUBLICATION listedge", "made the publication\n"},
		{"ALTER PUBLICATION listedge DROP TABLE items", "mended the publication\n"},
	} {
		execute(t, address, again.undo)
		if printed := command(t, "migrate", "up", "--database-url", address); printed != again.want {
			t.Errorf("%s: %q, want %q", again.undo, printed, again.want)
		}
	}
	startNode(t, address)
	expect(t, allFine(t, "redis maxmemory", "--database-url", address, "--redis-url", r.URL()), "redis maxmemory", doctor.Warn, "not set")
	if printed := command(t, "doctor", "--database-url", address); strings.Count(printed, "\n") < 9 || !strings.Contains(printed, "ok    follower") {
		t.Error(printed)
	}
}

// The doctor reports a lock that blocks page queries, and who holds it.
func TestDoctorOfLocks(t *testing.T) {
	t.Parallel()
	address := database(t)
	expect(t, diagnose(t, exitFine, "--database-url", address), "locks", doctor.OK, "nobody keeps readers")
	holder := connect(t, address)
	must1(holder.Exec(t.Context(), "BEGIN; LOCK TABLE items,\n\tapi_keys IN ACCESS EXCLUSIVE MODE"))
	blocked := func(by string) { // a statement that checks what is locked ends with its timeout
		t.Helper()
		holds := fmt.Sprintf("pg_terminate_backend(%d)", holder.PgConn().PID())
		says(t, []string{"--database-url", address}, exitFine, doctor.Finding{Subject: "locks", Level: doctor.Warn, Text: by},
			doctor.Finding{Subject: "locks", Level: doctor.Warn, Text: holds})
	}
	blocked(fmt.Sprintf("api_keys and items locked by process %d (idle in transaction: BEGIN; LOCK TABLE items, api_keys IN ACCESS EXCLUSIVE MODE)",
		holder.PgConn().PID()))
	must1(holder.Exec(t.Context(), "ROLLBACK"))

	// Readers wait for a schema change, which waits for a long transaction.
	must1(holder.Exec(t.Context(), "BEGIN; SELECT FROM contacts"))
	changer := connect(t, address)
	ended := make(chan error)
	go func() {
		_, err := changer.Exec(context.Background(), "ALTER TABLE contacts ADD COLUMN more text")
		ended <- err
	}()
	blocked("contacts locked by ") // the first of the queue
	must1(holder.Exec(t.Context(), "ROLLBACK"))
	if err := <-ended; err != nil {
		t.Error(err)
	}
	expect(t, diagnose(t, exitFine, "--database-url", address), "locks", doctor.OK, "nobody keeps readers")
}

func TestDoctorAndMigrateOnBadServers(t *testing.T) {
	t.Parallel()
	p := sandboxtest.PostgresWith(t, map[string]string{
		"wal_level": "replica", "max_slot_wal_keep_size": "-1", "max_replication_slots": "0", "max_wal_senders": "0", "max_connections": "30",
		"synchronous_standby_names": "*"})
	execute(t, p.URL("postgres"), "CREATE DATABASE bad TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
	by := diagnose(t, exitFailed, "--database-url", p.URL("bad"))
	expect(t, by, "reading", doctor.Fail, "encoding is LATIN1")
	expect(t, by, "max_slot_wal_keep_size", doctor.Warn, "")
	expect(t, by, "slot", doctor.Warn, "there is none")
	expect(t, by, "max_connections", doctor.Warn, "set max_connections")
	for _, lacking := range []string{"wal_level is replica", "publication", "max_wal_senders"} {
		expect(t, by, "follower", doctor.Warn, lacking)
	}

	// An owner who is no superuser gets the schema, and a message about the rest.
	execute(t, p.URL("postgres"), "CREATE ROLE owner LOGIN PASSWORD 'p'")
	execute(t, p.URL("postgres"), "CREATE DATABASE owned TEMPLATE template0 OWNER owner")
	u := must1(url.Parse(p.URL("owned")))
	u.User = url.UserPassword("owner", "p")
	printed := command(t, "migrate", "up", "--database-url", u.String())
	for _, want := range []string{"made the publication", "not made: the slot", "wal_level"} {
		if !strings.Contains(printed, want) {
			t.Errorf("%q is missing: %s", want, printed)
		}
	}
	by = diagnose(t, exitFine, "--database-url", u.String())
	expect(t, by, "follower", doctor.Warn, "max_wal_senders")
	if again := command(t, "migrate", "up", "--database-url", u.String()); !strings.Contains(again, "nothing to apply") ||
		!strings.Contains(again, "not made: the slot") {
		t.Error(again)
	}
	by = diagnose(t, exitFailed, "--database-url", "postgres://127.0.0.1:1/none")
	expect(t, by, "postgres", doctor.Fail, "127.0.0.1")
}

func TestDoctorOfReplicas(t *testing.T) {
	t.Parallel()
	primary, address := privateDatabase(t)
	standby := sandboxtest.Standby(t, primary, nil)
	u := must1(url.Parse(address))
	of := func(p *sandbox.Postgres) string { return p.URL(u.Path[1:]) }
	look := func(replica string) doctor.Finding {
		t.Helper()
		return diagnose(t, exitFine, "--database-url", address, "--replica-url", replica)["replica "+must1(url.Parse(replica)).Host]
	}
	within(t, patience, "a good standby", func() bool { return look(of(standby)).Level == doctor.OK })
	if f := look(address); f.Level != doctor.Warn || !strings.Contains(f.Text, "not a standby") {
		t.Errorf("the primary itself: %+v", f)
	}
	execute(t, address, "CREATE ROLE unprivileged LOGIN PASSWORD 'x'")
	reader := must1(url.Parse(of(standby)))
	reader.User = url.UserPassword("unprivileged", "x")
	within(t, patience, "a role without the right to statistics", func() bool {
		f := look(reader.String())
		return f.Level == doctor.Warn && strings.Contains(f.Text, "not queried") && strings.Contains(f.Remedy, "pg_read_all_stats")
	})
	if f := look("postgres://127.0.0.1:1/none"); f.Level != doctor.Warn {
		t.Errorf("nobody: %+v", f)
	}
	other := sandboxtest.Standby(t, sandboxtest.Postgres(t), nil)
	if f := look(other.URL("postgres")); f.Level != doctor.Warn || !strings.Contains(f.Text, "follows the system") {
		t.Errorf("another's standby: %+v", f)
	}
}

// Each failure to reach Redis, and each of its settings that may not be, is reported with what to do.
func TestDoctorOfRedis(t *testing.T) {
	t.Parallel()
	address := database(t)
	r, overTLS, _ := tlsRedis(t)
	secured := sandboxtest.Redis(t)
	must(redistest.Client(t, secured).ConfigSet(t.Context(), "requirepass", "secret").Err())
	sentinel := sandboxtest.Sentinel(t, "main", r.Addr(), time.Second)
	host, port, _ := strings.Cut(r.Addr(), ":")
	for url, wanted := range map[string]string{
		overTLS: "certificate",
		strings.Replace(overTLS, "rediss", "redis", 1):           "TLS",
		strings.Replace(r.URL(), "redis", "rediss", 1):           "TLS",
		"redis://:wrong@" + secured.Addr():                       "WRONGPASS",
		secured.URL():                                            "NOAUTH",
		"redis+sentinel://" + sentinel.Addr() + "/other":         "no such master",
		"redis+sentinel://127.0.0.1:1/main":                      "127.0.0.1:1",
		"redis://127.0.0.1:1":                                    "127.0.0.1:1",
		sandboxtest.Redis(t, "--replicaof", host+" "+port).URL(): "READONLY",
		sandboxtest.Redis(t, "--cluster-enabled", "yes").URL():   "Cluster",
	} {
		says(t, []string{"--database-url", address, "--redis-url", url}, exitFailed, doctor.Finding{Subject: "redis", Level: doctor.Fail, Text: wanted})
	}
	for _, policy := range []string{"allkeys-lru", "volatile-ttl"} {
		r := sandboxtest.Redis(t, "--maxmemory", "64mb", "--maxmemory-policy", policy)
		says(t, []string{"--database-url", address, "--redis-url", r.URL()}, exitFine,
			doctor.Finding{Subject: "redis eviction", Level: doctor.Warn, Text: "set maxmemory-policy"},
			doctor.Finding{Subject: "redis maxmemory", Level: doctor.OK, Text: "set"})
	}
	// And nothing of the client's log.
	refused(t, exitFailed, "at least one check failed: see above", "doctor", "--database-url", address, "--redis-url", "redis://127.0.0.1:1")
	refused(t, exitUsage, "", "doctor", "--database-url", address, "--redis-url", "memcached://a")
}

// subject is the subject of the findings about a node.
func (n *testNode) subject() string { return "node " + strings.TrimPrefix(n.admin, "http://") }

// has reports whether one of the findings on a subject has this level and text.
func has(findings []doctor.Finding, subject string, level doctor.Level, text string) bool {
	return slices.ContainsFunc(findings, func(f doctor.Finding) bool {
		return f.Subject == subject && f.Level == level && strings.Contains(f.Text+f.Remedy, text)
	})
}

// says waits until the doctor has all wanted findings, because nodes count each other and
// elect a follower within seconds. A wanted text is part of a finding's text.
func says(t *testing.T, args []string, code int, wanted ...doctor.Finding) {
	t.Helper()
	last, found := "", false
	defer func() {
		if !found {
			t.Logf("wanted %d and %+v, the last was %s", code, wanted, last)
		}
	}()
	within(t, patience, "the doctor says so", func() bool {
		findings, p := consult(t, args...)
		last = p.out.String() + p.err.String()
		found = findings != nil && p.code == code &&
			!slices.ContainsFunc(wanted, func(w doctor.Finding) bool { return !has(findings, w.Subject, w.Level, w.Text) })
		return found
	})
}

func TestDoctorOfAFleet(t *testing.T) {
	t.Parallel()
	address := database(t)
	redis := sandboxtest.Redis(t)
	var nodes []*testNode
	var admins []string
	for range 3 {
		n := startFollowed(t, address, "--redis-url", redis.URL())
		nodes, admins = append(nodes, n), append(admins, n.admin)
	}
	here := []string{"--database-url", address, "--redis-url", redis.URL()}
	all := append(slices.Clone(here), "--node", strings.Join(admins[:2], ","), "--node", strings.TrimPrefix(admins[2], "http://"), "--node", admins[0])
	wanted := []doctor.Finding{{Subject: "fleet size", Level: doctor.OK, Text: "3 on all"},
		{Subject: "fleet follower", Level: doctor.OK, Text: "127.0.0.1:"}}
	for _, n := range nodes {
		wanted = append(wanted, doctor.Finding{Subject: n.subject(), Level: doctor.OK, Text: "proof of freshness"})
	}
	says(t, all, exitFine, wanted...)
	if by := diagnose(t, exitFine, here...); by["fleet size"].Text != "" || by["redis"].Level != doctor.OK {
		t.Errorf("without --node: %+v", by)
	}

	// Not all nodes are named, or another Redis than the nodes'.
	bystander := nodes[slices.IndexFunc(nodes, func(n *testNode) bool { return n.metric(t, "listedge_freshness_follower") == 0 })]
	says(t, append(slices.Clone(here), "--node", bystander.admin), exitFine,
		doctor.Finding{Subject: "fleet size", Level: doctor.Warn, Text: "1 on the doctor; 3 on "})
	says(t, append(slices.Clone(all), "--redis-url", sandboxtest.Redis(t).URL()), exitFailed,
		doctor.Finding{Subject: "fleet log of changes", Level: doctor.Fail, Text: "none on the doctor"})

	// Addresses that are no admin listeners.
	by := diagnose(t, exitFailed, append(slices.Clone(here), "--node", nodes[0].url, "--node", "127.0.0.1:1", "--node", "http://nobody.invalid:9090")...)
	expect(t, by, "node "+strings.TrimPrefix(nodes[0].url, "http://"), doctor.Fail, "not the response of a node")
	expect(t, by, "node 127.0.0.1:1", doctor.Fail, "refused")
	expect(t, by, "node nobody.invalid:9090", doctor.Fail, "nobody.invalid")
	for _, wrong := range []string{"ftp://a", "http://", "http://a b", ""} {
		refused(t, exitUsage, "--node", append([]string{"doctor", "--node=" + wrong}, here...)...)
	}

	// One has another setting, and no Redis.
	alone := startNode(t, address, "--cache-ttl", "3s")
	name := strings.TrimPrefix(alone.admin, "http://")
	says(t, append(slices.Clone(all), "--node", alone.admin), exitFailed,
		doctor.Finding{Subject: "fleet cache-ttl", Level: doctor.Warn, Text: "; 3s on " + name},
		doctor.Finding{Subject: "fleet limits", Level: doctor.Fail, Text: "not in Redis on " + name},
		doctor.Finding{Subject: "fleet size", Level: doctor.Fail, Text: "1 on " + name})

	// One that is draining. It is killed when the test ends.
	leaving := launchNode(t, address, "--redis-url", redis.URL(), "--drain", "10m")
	leaving.awaitFollowed(t)
	leaving.signal(syscall.SIGTERM)
	says(t, append(slices.Clone(here), "--node", leaving.admin), exitFine, doctor.Finding{Subject: leaving.subject(), Level: doctor.Warn, Text: "it is draining"})
}

func TestDoctorOfNodesThatHangOrLackSomething(t *testing.T) {
	t.Parallel()
	f := &fleet{redis: sandboxtest.Redis(t), url: database(t)}
	f.startNodes(t, 2)
	f.awaitFollowed(t)
	hung := f.follower(t)
	other := f.bystander(t)
	hung.signal(syscall.SIGSTOP)
	hung.stopped = true
	args := []string{"--database-url", f.url, "--node", hung.admin, "--node", other.admin}
	says(t, args, exitFailed,
		doctor.Finding{Subject: hung.subject(), Level: doctor.Fail, Text: "no answer in time"},
		doctor.Finding{Subject: other.subject(), Level: doctor.OK, Text: "ready"},
		doctor.Finding{Subject: "fleet follower", Level: doctor.OK, Text: strings.TrimPrefix(other.admin, "http://")})

	other.toRedis.Lose(true)
	args = []string{"--database-url", f.url, "--node", other.admin}
	says(t, args, exitFailed,
		doctor.Finding{Subject: other.subject(), Level: doctor.Fail, Text: "serves no page from a cache"},
		doctor.Finding{Subject: "redis", Level: doctor.Fail, Text: "Redis is down: "})
	lost := launchNode(t, "postgres://127.0.0.1:1/none")
	says(t, []string{"--database-url", f.url, "--node", lost.admin}, exitFailed,
		doctor.Finding{Subject: "postgres", Level: doctor.Fail, Text: "Postgres is down: "})
}
