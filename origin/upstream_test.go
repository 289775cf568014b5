package origin

import (
	"errors"
	"strings"
	"testing"
	"time"

	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/internal/page"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
	"listedge/origin/apikey"
	"listedge/origin/postgres"
)

// reading is an Origin and a key store that read from one address, be it that
// they know which server is followed.
type reading struct {
	db   *postgres.Database
	o    *Origin
	keys *apikey.Store
}

func readFrom(t *testing.T, url string, server fleet.Server) reading {
	followed := &fleet.Followed{}
	if server.System != "" {
		followed.SetServer(server)
		followed.ObserveEpoch(fleet.EpochName{Identity: server.Digest(), Timeline: server.Timeline}.String())
	}
	db := openDatabase(t, postgres.Options{URL: url, Followed: followed})
	return reading{db, New(db, list.BuiltIn(), nil), apikey.NewStore(db, list.BuiltIn())}
}

// ask reads a page and a key from this address, while the node follows that run of the
// primary, and returns the errors.
func (r reading) ask(t *testing.T, run string) (errs [2]error) {
	t.Helper()
	for i, ask := range []func() error{
		func() error { _, err := r.o.Fetch(within(t, patience), anyPage, run); return err },
		func() error { _, err := r.keys.Lookup(within(t, patience), []apikey.Hash{{1}}, run); return err },
	} {
		eventually(t, "an answer", func() bool { // a pooler may have to connect first
			errs[i] = ask()
			return errs[i] == nil || errors.Is(errs[i], page.ErrWrongServer) || !errors.Is(errs[i], page.ErrUnavailable)
		})
	}
	return errs
}

func (r reading) refused(t *testing.T, run, why string) {
	t.Helper()
	for _, err := range r.ask(t, run) {
		if !errors.Is(err, page.ErrWrongServer) || !errors.Is(err, page.ErrUnavailable) || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
	if err := r.db.WrongServer(); err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("the wrong server: %v", err)
	}
}

func (r reading) taken(t *testing.T, run string) {
	t.Helper()
	if errs := r.ask(t, run); errs != [2]error{} {
		t.Error(errs)
	}
}

// A server in recovery is not taken for the primary: neither by pages, nor by keys, nor by
// commands.
func TestAStandbyIsNotThePrimary(t *testing.T) {
	t.Parallel()
	primary := sandboxtest.Postgres(t)
	address := ownDatabase(t, primary)
	replica := sandboxtest.Standby(t, primary, nil)
	standby := replica.URL("listedge")
	run := runOf(t, address)
	through := map[string]string{"direct": standby}
	for _, mode := range []string{"session", "transaction"} {
		_, through[mode] = sandboxtest.PgBouncer(t, standby, map[string]string{"pool_mode": mode})
	}
	for name, url := range through {
		t.Run(name, func(t *testing.T) {
			for _, followed := range []fleet.Server{{}, identity(t, address)} {
				r := readFrom(t, url, followed)
				for range 5 { // the breakers stay closed: the right server would get queries at once
					for _, run := range []string{"", run} {
						r.refused(t, run, "is a standby")
					}
				}
				if r.o.Stats().BreakerOpen || r.keys.BreakerOpen() {
					t.Error("a breaker is open")
				}
				if err := admin.NewReadiness(r.db, list.BuiltIn(), New(r.db, list.BuiltIn(), nil)).Ready(within(t, patience)); !errors.Is(err, page.ErrWrongServer) {
					t.Errorf("ready: %v", err)
				}
			}
		})
	}
	for name, run := range map[string]func() error{
		"keys and workspaces": func() error { _, err := admin.Open(t.Context(), standby); return err },
		"migrate up":          func() error { _, err := admin.MigrateUp(t.Context(), standby, list.BuiltIn()); return err },
	} {
		if err := run(); !errors.Is(err, postgres.ErrStandby) {
			t.Errorf("%s: %v", name, err)
		}
	}
	comparesServers(t, address, standby)
}

// comparesServers waits until a node with these URLs says that they lead to different servers.
func comparesServers(t *testing.T, pages, changes string) {
	t.Helper()
	db := openDatabase(t, postgres.Options{URL: pages, ReplicationURL: changes})
	eventually(t, "the servers are compared", func() bool {
		err := admin.NewReadiness(db, list.BuiltIn(), New(db, list.BuiltIn(), nil)).Ready(within(t, patience))
		return err != nil && strings.Contains(err.Error(), "another server")
	})
}

// runOf is the run of the server.
func runOf(t *testing.T, url string) string {
	t.Helper()
	return must1(openOrigin(t, url).Fetch(within(t, patience), anyPage, "")).At.StartedAt
}

// After a fail-over the old primary lives on. While the new one's run is proven,
// nothing that the old one says is taken; nor later, for its timeline has ended.
// The new one is taken whatever was followed before.
func TestAnEarlierTimelineIsRefused(t *testing.T) {
	t.Parallel()
	old := sandboxtest.Postgres(t)
	address := ownDatabase(t, old)
	next := sandboxtest.Standby(t, old, nil)
	first := identity(t, address)
	execOn(t, next.URL("postgres"), "SELECT pg_promote()")
	second := identity(t, next.URL("listedge"))
	runs := []string{runOf(t, address), runOf(t, next.URL("listedge"))}
	comparesServers(t, next.URL("listedge"), address)
	pooler, pooled := sandboxtest.PgBouncer(t, address, map[string]string{"pool_mode": "transaction"})
	network := sandboxtest.StartRelay(t, old.Addr())
	for name, c := range map[string]struct {
		url  string
		lead func(to string) error
	}{
		"direct": {strings.Replace(address, old.Addr(), network.Addr(), 1), func(to string) error { network.Redirect(to); return nil }},
		"pooled": {pooled, pooler.LeadTo},
	} {
		t.Run(name, func(t *testing.T) {
			r := readFrom(t, c.url, second)
			r.refused(t, runs[1], "not the server that is followed")
			r.refused(t, "", "is on timeline 1; the fleet follows timeline 2")
			knowsNothing := readFrom(t, c.url, fleet.Server{})
			knowsNothing.taken(t, "")
			knowsNothing.taken(t, runs[0])
			must(c.lead(next.Addr()))
			eventually(t, "the new primary, of connections that led to the old one", func() bool { return r.ask(t, runs[1]) == [2]error{} })
			r.taken(t, "")
			readFrom(t, c.url, first).taken(t, "") // a fail-over that no node has followed yet
			readFrom(t, c.url, first).refused(t, runs[0], "not the server that is followed")
			must(c.lead(old.Addr()))
		})
	}
}

// Until the timeline is known no query is sent; those that wait are answered then.
func TestNothingIsReadBeforeTheTimelineIsKnown(t *testing.T) {
	t.Parallel()
	known := make(chan struct{})
	db := openDatabase(t, postgres.Options{URL: newDatabase(t), Followed: &fleet.Followed{Known: known}})
	r := reading{db, New(db, list.BuiltIn(), nil), apikey.NewStore(db, list.BuiltIn())}
	read := func() error { _, err := r.o.Fetch(within(t, patience), anyPage, ""); return err }
	key := func() error { _, err := r.keys.Lookup(within(t, patience), []apikey.Hash{{1}}, ""); return err }
	for _, err := range []error{read(), key(), admin.NewReadiness(db, list.BuiltIn(), New(db, list.BuiltIn(), nil)).Ready(within(t, patience))} {
		if !errors.Is(err, page.ErrUnavailable) || !strings.Contains(err.Error(), "not known yet") {
			t.Error(err)
		}
	}
	waiting := make(chan error, 2)
	go func() { waiting <- read() }()
	go func() { waiting <- key() }()
	close(known)
	for range 2 {
		if err := <-waiting; err != nil {
			t.Error(err)
		}
	}
	r.taken(t, "")
}

// While an address leads to the wrong server, not each query makes a
// connection.
func TestTheWrongServerGetsFewConnections(t *testing.T) {
	t.Parallel()
	r := readFrom(t, newDatabase(t), fleet.Server{})
	before, began := r.o.Stats().Pool.NewConnsCount(), time.Now()
	for range 50 {
		if _, err := r.o.Fetch(within(t, patience), anyPage, "another"); !errors.Is(err, page.ErrWrongServer) {
			t.Fatal(err)
		}
	}
	if made := r.o.Stats().Pool.NewConnsCount() - before; made > 10+int64(time.Since(began)/postgres.PrimaryCooldown) {
		t.Errorf("%d connections in %s", made, time.Since(began))
	}
}
