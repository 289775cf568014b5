package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"

	"listedge/cmd/listedge/doctor"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
)

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
		p := start(t, append([]string{"doctor", "--json"}, args...)...)
		<-p.ended
		var findings []doctor.Finding
		last = p.out.String() + p.err.String()
		found = json.Unmarshal([]byte(p.out.String()), &findings) == nil && p.code == code &&
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

	// Not all nodes are named, or another Redis than the nodes', or another region.
	bystander := nodes[slices.IndexFunc(nodes, func(n *testNode) bool { return n.metric(t, "listedge_freshness_follower") == 0 })]
	says(t, append(slices.Clone(here), "--node", bystander.admin), exitFine,
		doctor.Finding{Subject: "fleet size", Level: doctor.Warn, Text: "1 on the doctor; 3 on "})
	says(t, append(slices.Clone(all), "--redis-url", sandboxtest.Redis(t).URL()), exitFailed,
		doctor.Finding{Subject: "fleet log of changes", Level: doctor.Fail, Text: "none on the doctor"})
	says(t, append(slices.Clone(all), "--region", "elsewhere"), exitFailed,
		doctor.Finding{Subject: "fleet region", Level: doctor.Fail, Text: "elsewhere on the doctor"})

	// Addresses that are no admin listeners.
	by := diagnose(t, exitFailed, append(slices.Clone(here), "--node", nodes[0].url, "--node", "127.0.0.1:1", "--node", "http://nobody.invalid:9090")...)
	expect(t, by, "node "+strings.TrimPrefix(nodes[0].url, "http://"), doctor.Fail, "not the response of a node")
	expect(t, by, "node 127.0.0.1:1", doctor.Fail, "refused")
	expect(t, by, "node nobody.invalid:9090", doctor.Fail, "nobody.invalid")
	for _, wrong := range []string{"ftp://a", "http://", "http://a b", ""} {
		refused(t, exitUsage, "--node", append([]string{"doctor", "--node=" + wrong}, here...)...)
	}

	// Nodes that differ: one has another setting, one does not follow changes, one has no Redis.
	other := startNode(t, address, "--redis-url", redis.URL(), "--cache-ttl", "3s", "--freshness-bound", "0")
	name := func(n *testNode) string { return strings.TrimPrefix(n.admin, "http://") }
	says(t, append(slices.Clone(all), "--node", other.admin), exitFine,
		doctor.Finding{Subject: "fleet cache-ttl", Level: doctor.Warn, Text: "2s on "},
		doctor.Finding{Subject: "fleet cache-ttl", Level: doctor.Warn, Text: "; 3s on " + name(other)},
		doctor.Finding{Subject: "fleet freshness-bound", Level: doctor.Warn, Text: "; 0s on " + name(other)},
		doctor.Finding{Subject: other.subject(), Level: doctor.OK, Text: "pages expire by age"})
	alone := startNode(t, address)
	says(t, append(slices.Clone(all), "--node", alone.admin), exitFailed, doctor.Finding{Subject: "fleet limits", Level: doctor.Fail, Text: "not in Redis on " + name(alone)},
		doctor.Finding{Subject: "fleet size", Level: doctor.Fail, Text: "1 on " + name(alone)})

	// One that is draining. It is killed when the test ends.
	leaving := launchNode(t, address, "--redis-url", redis.URL(), "--drain", "10m")
	leaving.awaitFollowed(t)
	leaving.signal(syscall.SIGTERM)
	says(t, append(slices.Clone(here), "--node", leaving.admin), exitFine, doctor.Finding{Subject: leaving.subject(), Level: doctor.Warn, Text: "it is draining"})
}

func TestDoctorOfNodesThatHangOrLackSomething(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 2)
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
	_, old := privateDatabaseWith(t, map[string]string{"wal_level": "replica"})
	n := startNode(t, old)
	says(t, []string{"--database-url", old, "--node", n.admin}, exitFine,
		doctor.Finding{Subject: n.subject(), Level: doctor.OK, Text: "pages expire by age"},
		doctor.Finding{Subject: "follower", Level: doctor.Warn, Text: "expire after --cache-ttl"})
	lost := launchNode(t, "postgres://127.0.0.1:1/none")
	says(t, []string{"--database-url", old, "--node", lost.admin}, exitFailed, doctor.Finding{Subject: "postgres", Level: doctor.Fail, Text: "Postgres is down: "})
}

// The entry of a node that was killed long ago leaves the roster, and so does that of one that ends.
func TestTheRosterForgetsNodesThatEnded(t *testing.T) {
	t.Parallel()
	server := sandboxtest.Redis(t)
	n := startNode(t, database(t), "--redis-url", server.URL())
	client := redistest.Client(t, server)
	const roster = "listedge:{changes}:nodes"
	client.HSet(t.Context(), roster, "killed", `{"name":"killed:9090","version":"0.2.0","seen":1}`)
	within(t, patience, "the others remove it", func() bool { return !client.HExists(t.Context(), roster, "killed").Val() })
	n.stop()
	if left := client.HGetAll(t.Context(), roster).Val(); len(left) > 0 {
		t.Errorf("a node that has ended is still there: %v", left)
	}
}
